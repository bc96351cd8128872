//! The reference passes its own suite.

octavo_backend::conformance!(octavo_backend::Reference);
