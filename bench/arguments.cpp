#include "bench/arguments.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace trireme::bench {

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
