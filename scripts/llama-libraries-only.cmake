# Included behind llama.cpp's project() call: its `common` library is not used by the binding and
# takes a third of the build.
set(LLAMA_BUILD_COMMON OFF)
