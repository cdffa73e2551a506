// serve/api/fields.h -- the members of a JSON object, each taken once and checked; what is left over is refused.
//
// Depends on: http/message.h, nlohmann json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::serve::api {

using Json = nlohmann::json;

/// HttpError 400 about one field, as OpenAI's clients understand it.
[[noreturn]] void refuse_field(std::string_view field, std::string message, std::string code = "invalid_value");

class Fields {
 public:
  /// Borrows the object. `path` stands before names in messages: "messages[0].".
  explicit Fields(const Json& object, std::string path = {});

  /// Null where it is missing or null; from then on it counts as known.
  const Json* take(std::string_view name);

  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> whole(std::string_view name, std::int64_t least, std::int64_t most);
  std::optional<double> number(std::string_view name, double least, double most);
  std::optional<std::string> text(std::string_view name);
  /// A field that is not supported: may be missing, null, or one of the values that ask for nothing.
  void only(std::string_view name, const std::vector<Json>& harmless, std::string_view why);
  /// Refuses the first field that nobody took.
  void end() const;

  std::string path(std::string_view name) const { return path_ + std::string(name); }

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace trireme::serve::api
