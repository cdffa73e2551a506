#include "trireme/dashboard/json_numbers.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace trireme::dashboard {

observe::Json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value, std::chars_format::general, 6);
  double rounded = value;
  if (error == std::errc()) std::from_chars(text, end, rounded);
  return rounded;
}

observe::Json curve_json(const observe::Curve& curve) {
  observe::Json x = observe::Json::array(), y = observe::Json::array();
  for (const observe::Point& point : curve) {
    x.push_back(short_number(point.x));
    y.push_back(short_number(point.y));
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

}  // namespace trireme::dashboard
