// formats/hf_config.h -- a model's config.json: typed looks into it, unknown keys kept.
//
//   const HfConfig config = read_hf_config("model/config.json");
//   config.get<std::int64_t>("hidden_size")           FormatError naming file and key: missing, or not a number
//   config.find<double>("rope_scaling.factor")        nothing when it is missing or null: published files use both
//
// Keys within keys are joined by dots. A configuration that was not changed is written back as the bytes it was read
// from.
// Depends on: base, formats/json_text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/base/json_value.h"

namespace trireme::formats {

inline constexpr std::uint64_t kMaxConfigBytes = 16'000'000;

class HfConfig {
 public:
  /// `text` is the file's content, `source` its name for messages.
  HfConfig(std::string text, std::string source);

  const std::string& source() const { return source_; }
  const nlohmann::ordered_json& json() const { return *json_; }

  /// T: std::int64_t, double, bool, std::string, or a std::vector of the first three or of texts. A double may be
  /// written as a whole number; nothing else is converted.
  template <typename T>
  std::optional<T> find(std::string_view key) const;
  template <typename T>
  T get(std::string_view key) const {
    if (auto value = find<T>(key)) return *std::move(value);
    missing(key);
  }
  template <typename T>
  T get_or(std::string_view key, T otherwise) const {
    return find<T>(key).value_or(std::move(otherwise));
  }

  /// Sections on the way must exist. A new key takes its place in the alphabet where the others are in that order, as
  /// the standard writer leaves them, and the last place otherwise.
  void set(std::string_view key, const nlohmann::ordered_json& value);
  /// A key of the outermost section; nothing happens where there is none.
  void erase(std::string_view key);
  /// What belongs into the file: the bytes that were read while nothing differs from them; what the standard writer
  /// would make of it otherwise.
  const std::string& text() const { return text_; }

 private:
  const nlohmann::ordered_json* look_up(std::string_view key) const;
  [[noreturn]] void missing(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, const nlohmann::ordered_json& value,
                               std::string_view expected) const;

  std::string text_, source_;
  JsonValue json_;
};

HfConfig read_hf_config(const std::filesystem::path& path);

}  // namespace trireme::formats
