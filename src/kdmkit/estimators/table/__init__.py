"""Tables: frames in and out of a tree of KDMs, and questions about them."""
