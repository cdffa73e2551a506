#include "trireme/observe/json_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace trireme::observe {

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

Json with_texts(Json value) {
  if (value.is_number_float()) return number(value.get<double>());
  if (value.is_structured()) {
    for (auto& inner : value) inner = with_texts(std::move(inner));
  }
  return value;
}

std::string line_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string hex(std::uint64_t bits) { return fmt::format("{:016x}", bits); }

std::optional<std::uint64_t> parse_hex(std::string_view text) {
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  if (text.size() != 16 || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return bits;
}

}  // namespace trireme::observe
