#include "trireme/formats/hf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/json_text.h"

namespace trireme::formats {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
struct Type;
template <>
struct Type<std::int64_t> {
  static constexpr std::string_view kName = "a whole number";
  static bool fits(const Json& value) {
    // What does not fit 63 bits is stored as unsigned.
    return value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  }
};
template <>
struct Type<double> {
  static constexpr std::string_view kName = "a number";
  static bool fits(const Json& value) { return value.is_number(); }
};
template <>
struct Type<bool> {
  static constexpr std::string_view kName = "true or false";
  static bool fits(const Json& value) { return value.is_boolean(); }
};
template <>
struct Type<std::string> {
  static constexpr std::string_view kName = "a text";
  static bool fits(const Json& value) { return value.is_string(); }
};
template <typename T>
struct Type<std::vector<T>> {
  static constexpr std::string_view kName = std::is_same_v<T, std::string> ? "a list of texts" : "a list of numbers";
  static bool fits(const Json& value) { return value.is_array() && std::ranges::all_of(value, Type<T>::fits); }
};

const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) keys.push_back(key);
  return keys;
}

/// `object` with one more member, where it belongs.
void insert(Json& object, const std::string& key, const Json& value) {
  auto& members = static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>());
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  const bool sorted = std::is_sorted(members.begin(), members.end(), before);
  // Members have constant keys and cannot be moved about within the vector, so it is made anew.
  Json::object_t::Container grown;
  bool done = false;
  for (const auto& old : members) {
    if (sorted && !done && key < old.first) {
      grown.emplace_back(key, value);
      done = true;
    }
    grown.push_back(old);
  }
  if (!done) grown.emplace_back(key, value);
  members.swap(grown);
}

}  // namespace

HfConfig::HfConfig(std::string text, std::string source)
    : text_(std::move(text)), source_(std::move(source)), json_(parse_json(text_, source_)) {
  if (!json_->is_object())
    throw FormatError(fmt::format("{}: must be an object {{...}}, but is a {} (byte 0)", source_, json_->type_name()));
}

const Json* HfConfig::look_up(std::string_view key) const {
  const Json* value = &*json_;
  for (std::string_view rest = key; value != nullptr && !value->is_null();) {
    const std::size_t dot = rest.find('.');
    value = member(*value, rest.substr(0, dot));
    if (dot == rest.npos) break;
    rest.remove_prefix(dot + 1);
  }
  return value != nullptr && value->is_null() ? nullptr : value;
}

template <typename T>
std::optional<T> HfConfig::find(std::string_view key) const {
  const Json* value = look_up(key);
  if (value == nullptr) return std::nullopt;
  if (!Type<T>::fits(*value)) wrong_type(key, *value, Type<T>::kName);
  return value->get<T>();
}
template std::optional<std::int64_t> HfConfig::find(std::string_view) const;
template std::optional<double> HfConfig::find(std::string_view) const;
template std::optional<bool> HfConfig::find(std::string_view) const;
template std::optional<std::string> HfConfig::find(std::string_view) const;
template std::optional<std::vector<std::int64_t>> HfConfig::find(std::string_view) const;
template std::optional<std::vector<double>> HfConfig::find(std::string_view) const;
template std::optional<std::vector<std::string>> HfConfig::find(std::string_view) const;

void HfConfig::missing(std::string_view key) const {
  const std::size_t dot = key.rfind('.');
  const Json* section = dot == key.npos ? &*json_ : look_up(key.substr(0, dot));
  std::string near;
  if (section != nullptr && section->is_object())
    near = did_you_mean(dot == key.npos ? key : key.substr(dot + 1), keys_of(*section));
  throw FormatError(fmt::format("{}: the key {} is missing or null{}", source_, shown(key), near));
}

void HfConfig::wrong_type(std::string_view key, const Json& value, std::string_view expected) const {
  std::string is =
      value.is_structured() ? fmt::format("an {}", value.type_name()) : python_json(value, Keys::kAsTheyAre);
  if (is.size() > 80) is = fmt::format("a text of {} bytes", is.size());
  throw FormatError(fmt::format("{}: {} must be {}, but is {}", source_, shown(key), expected, is));
}

void HfConfig::set(std::string_view key, const Json& value) {
  Json* object = &*json_;
  std::string_view rest = key;
  for (std::size_t dot; (dot = rest.find('.')) != rest.npos; rest.remove_prefix(dot + 1)) {
    const Json* inner = member(*object, rest.substr(0, dot));
    if (inner == nullptr || !inner->is_object())
      throw FormatError(fmt::format("{}: {} cannot be set: {} is no section", source_, shown(key),
                                    shown(key.substr(0, key.size() - rest.size() + dot))));
    object = const_cast<Json*>(inner);
  }
  if (const Json* old = member(*object, rest)) {
    if (python_json(*old, Keys::kAsTheyAre) == python_json(value, Keys::kAsTheyAre)) return;
    *const_cast<Json*>(old) = value;
  } else {
    insert(*object, std::string(rest), value);
  }
  text_ = python_json(*json_, Keys::kAsTheyAre) + "\n";
}

void HfConfig::erase(std::string_view key) {
  if (member(*json_, key) == nullptr) return;
  json_->erase(std::string(key));
  text_ = python_json(*json_, Keys::kAsTheyAre) + "\n";
}

HfConfig read_hf_config(const std::filesystem::path& path) {
  return HfConfig(read_text_file(path, kMaxConfigBytes), path.string());
}

}  // namespace trireme::formats
