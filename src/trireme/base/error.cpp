#include "trireme/base/error.h"

#include <cxxabi.h>
#include <execinfo.h>

#include <cstdlib>
#include <memory>

namespace trireme {
namespace {

constexpr int kMaxFrames = 48;

// backtrace_symbols() gives "lib(mangled+0x1f) [0x...]"; people want the readable name.
std::string readable(const std::string& symbol) {
  const auto open = symbol.find('('), plus = symbol.find('+', open);
  if (open == std::string::npos || plus == std::string::npos || plus == open + 1) return symbol;
  const std::string mangled = symbol.substr(open + 1, plus - open - 1);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? std::string(name.get()) : mangled;
}

// Continuation lines start under the text of the first one, so that a message of several lines stays one block.
std::string indented(const std::string& text, std::size_t width) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out.append(width, ' ');
  }
  return out;
}

}  // namespace

Error::Error(std::string message, std::string hint) : message_(std::move(message)), hint_(std::move(hint)) {
  frames_.resize(kMaxFrames);
  frames_.resize(static_cast<std::size_t>(backtrace(frames_.data(), kMaxFrames)));
}

std::string Error::block(bool trace) const {
  std::string out = fmt::format("{}: {}\n", kind(), indented(message_, 2));
  for (const auto& circumstance : context_) out += fmt::format("  {}\n", indented(circumstance, 2));
  if (!hint_.empty()) out += fmt::format("  hint: {}\n", indented(hint_, 8));
  if (trace) {
    out += "  thrown at:\n";
    const std::unique_ptr<char*, decltype(&std::free)> names(
        backtrace_symbols(frames_.data(), static_cast<int>(frames_.size())), &std::free);
    for (std::size_t i = 1; names && i < frames_.size(); ++i) {
      out += fmt::format("    {}\n", readable(names.get()[i]));
    }
  }
  return out;
}

void detail::check_failed(const char* condition, const char* file, int line, std::string why) {
  throw InternalError(fmt::format("{} ({} does not hold at {}:{})", why, condition, file, line),
                      "this is a defect in Trireme; please report it with the command that showed it");
}

}  // namespace trireme
