"""What kernels run on.

- `native_build`: compiles the C++ of `kernels/native/` at first use, and loads it
- `triton_port`: Triton, or a stand-in where it is not installed
- `huge_pages`: host memory in pages of two megabytes; `upload`: small arrays to a device without waiting
"""
