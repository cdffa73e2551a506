// tests/cli/run.h -- the program run as a function, with what it printed.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "trireme/cli/program.h"

namespace trireme::cli {

struct Outcome {
  int code;
  std::string out, err;
};

inline Outcome run(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int code = run_program(arguments, out, err);
  return {code, out.str(), err.str()};
}

}  // namespace trireme::cli
