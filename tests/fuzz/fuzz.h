// What fuzz targets share. A target is one function that takes any bytes and returns, or ends the process when
// something that must hold does not. Linked with libFuzzer (clang) or with driver.cpp (any compiler); both take
//   TARGET [-runs=N] [-max_total_time=SECONDS] [-seed=N] FILE_OR_FOLDER...
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace fuzz
