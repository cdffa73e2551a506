# trireme_torch: the CPU part of LibTorch (libtorch_cpu, libc10, its OpenMP), without torch's own CMake files, which would
# ask for CUDA and Python wherever they find them.
#
# Where: -DTRIREME_LIBTORCH=DIR, else the environment's TRIREME_LIBTORCH, else what scripts/setup found or unpacked.
include(${PROJECT_SOURCE_DIR}/build/setup.cmake OPTIONAL)
if(TRIREME_LIBTORCH)
  set(torch_dir ${TRIREME_LIBTORCH})
elseif(NOT "$ENV{TRIREME_LIBTORCH}" STREQUAL "")
  set(torch_dir $ENV{TRIREME_LIBTORCH})
else()
  set(torch_dir "${TRIREME_SETUP_LIBTORCH}")
endif()
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "TRIREME_TORCH is ON, but there is no LibTorch in \"${torch_dir}\".\n"
                      "Run scripts/setup, or set TRIREME_LIBTORCH to a folder with include/ and lib/libtorch_cpu.so, "
                      "or configure with -DTRIREME_TORCH=OFF (make build TORCH=OFF).")
endif()
message(STATUS "LibTorch: ${torch_dir}")

add_library(trireme_torch INTERFACE)
# -idirafter, not -isystem: torch's include folder carries another fmt, which must not shadow the system's.
target_compile_options(trireme_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter ${torch_dir}/include>)
# at::parallel_for is silently serial in code compiled without -fopenmp. Linked is the OpenMP that torch itself uses: two
# of them in one process would mean two pools of threads.
target_compile_options(trireme_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
file(GLOB torch_openmp ${torch_dir}/lib/libgomp*.so*)
target_link_libraries(trireme_torch INTERFACE ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so
                                              ${torch_openmp})

if(TRIREME_CUDA)
  # What libtrireme_cuda is linked with: the tensor library's streams. Its CUDA operators (libtorch_cuda, with cuDNN and NCCL
  # beside it) are loaded when a GPU is asked for, so that a machine without them still builds this.
  add_library(trireme_torch_cuda INTERFACE)
  target_link_libraries(trireme_torch_cuda INTERFACE ${torch_dir}/lib/libc10_cuda.so ${torch_dir}/lib/libc10.so)
  target_include_directories(trireme_torch_cuda SYSTEM INTERFACE ${torch_dir}/include)

  # Attention calls cuDNN itself where its headers are there; the library is the tensor library's, loaded with it.
  set(TRIREME_CUDNN "" CACHE STRING "A folder with cudnn.h and cudnn_frontend.h; OFF: none; empty: what scripts/setup fetched")
  set(trireme_cudnn_dir "${TRIREME_CUDNN}")
  if(trireme_cudnn_dir STREQUAL "")
    set(trireme_cudnn_dir "${TRIREME_SETUP_CUDNN}")
  endif()
  if(EXISTS "${trireme_cudnn_dir}/cudnn.h" AND EXISTS "${trireme_cudnn_dir}/cudnn_frontend.h")
    message(STATUS "cuDNN: called directly, headers in ${trireme_cudnn_dir}")
  elseif(TRIREME_CUDNN AND NOT TRIREME_CUDNN STREQUAL "OFF")
    message(FATAL_ERROR "TRIREME_CUDNN is \"${TRIREME_CUDNN}\", where there is no cudnn.h with cudnn_frontend.h beside it.")
  else()
    message(STATUS "cuDNN: no headers, so attention on GPUs asks it through ATen and joins gradients in a pass of its own; "
                   "scripts/setup fetches them, or set TRIREME_CUDNN to a folder with cudnn.h and cudnn_frontend.h")
    set(trireme_cudnn_dir "")
  endif()
endif()
