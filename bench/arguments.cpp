#include "bench/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

namespace trireme::bench {

int cannot_run(const std::string& why) {
  fmt::print(stderr, "cannot run: {}\n", why);
  return 77;
}

Arguments::Arguments(const std::string& about) : Arguments(std::make_unique<CLI::App>(about)) {}
Arguments::Arguments(std::unique_ptr<CLI::App> app) : Command(*app), app_(std::move(app)) {}
Arguments::~Arguments() = default;

std::optional<int> Arguments::parse(int count, char** words) {
  try {
    app_->parse(count, words);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error);
  }
  return std::nullopt;
}

}  // namespace trireme::bench
