#include "trireme/base/json_value.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace trireme {

JsonValue::JsonValue() : value_(std::make_unique<nlohmann::ordered_json>()) {}
JsonValue::JsonValue(nlohmann::ordered_json value)
    : value_(std::make_unique<nlohmann::ordered_json>(std::move(value))) {}
JsonValue::JsonValue(const JsonValue& other) : JsonValue(*other) {}
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue other) noexcept {
  value_.swap(other.value_);
  return *this;
}
JsonValue& JsonValue::operator=(nlohmann::ordered_json value) { return *this = JsonValue(std::move(value)); }
JsonValue::~JsonValue() = default;

bool JsonValue::operator==(const JsonValue& other) const { return *value_ == *other; }

}  // namespace trireme
