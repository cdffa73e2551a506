// base/json_value.h -- a JSON value as a member of a struct, without the JSON library in the struct's header.
//
// Reading json.hpp costs a second of every file that includes it. Here the value lies behind a pointer; it is copied
// and compared as the value itself, and who looks inside (*value) includes json.hpp.
// Depends on: json.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

namespace trireme {

class JsonValue {
 public:
  JsonValue();  ///< null
  explicit JsonValue(nlohmann::ordered_json value);
  JsonValue(const JsonValue& other);
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(JsonValue other) noexcept;
  JsonValue& operator=(nlohmann::ordered_json value);
  ~JsonValue();

  const nlohmann::ordered_json& operator*() const { return *value_; }
  const nlohmann::ordered_json* operator->() const { return value_.get(); }
  nlohmann::ordered_json& operator*() { return *value_; }
  nlohmann::ordered_json* operator->() { return value_.get(); }
  bool operator==(const JsonValue& other) const;

 private:
  std::unique_ptr<nlohmann::ordered_json> value_;  // never null, unless moved from
};

}  // namespace trireme
