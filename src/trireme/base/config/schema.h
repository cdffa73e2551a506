// base/config/schema.h -- what keys a configuration has, described once beside the struct that holds them.
//
//   struct CommConfig { int ranks = 1; std::chrono::nanoseconds deadline = 10min; Transport transport = kAuto; };
//   void describe(config::Section<CommConfig>& section) {
//     section.meaning("how ranks talk to each other");
//     section.field("ranks", &CommConfig::ranks, "how many ranks to start").range(1, 65536);
//     section.field("deadline", &CommConfig::deadline, "how long a call may take").at_least(1ms);
//     section.field("transport", &CommConfig::transport, "what carries the data");  // an enum with enum_names():
//     text.h
//   }
// Reading, checking, printing and documenting all go over the Schema that this builds; defaults are those of the
// struct. Members may be bool, whole numbers, double, text, enums with names, durations, std::optional and std::vector
// of these, other described structs (section) and vectors of them (tables).
// Depends on: error, text, units.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"

namespace trireme::config {

/// A key's value, whatever its C++ type. Durations are whole nanoseconds, enumerators their names.
struct Value {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<Value>> of;
  bool operator==(const Value&) const = default;
};

enum class Kind : std::uint8_t { kBool, kWhole, kReal, kText, kChoice, kDuration };

/// One end of the allowed range: `whole` for whole numbers and durations, `real` for real ones.
struct Bound {
  std::int64_t whole = 0;
  double real = 0;
  bool included = true;
};

struct Field {
  std::string name, meaning;
  Kind kind = Kind::kText;
  Unit unit = Unit::kNone;
  bool optional = false, list = false, required = false;
  std::vector<std::string> choices;
  std::optional<Bound> low, high;
  std::function<Value(const void* section)> get;
  std::function<void(void* section, const Value& value)> set;
};

struct Schema;

/// A section within a section: one struct, or a list of them ([[tables]]).
struct Part {
  std::string name;
  std::shared_ptr<const Schema> schema;  // shared with copies of the schema around it; never written
  bool list = false;
  std::function<std::size_t(const void* section)> size;                   // 1 when it is no list
  std::function<void(void* section, std::size_t size)> resize;            // lists only
  std::function<const void*(const void* section, std::size_t index)> at;  // the struct itself
};

struct Schema {
  std::string meaning;
  std::vector<Field> fields;
  std::vector<Part> parts;
  // Names that are no keys, for the error that says so: {former name, name now} and {section to come, what for}.
  std::vector<std::pair<std::string, std::string>> retired, reserved;
  // Of the outermost schema: names that other programs have for a key, wherever they stand, and the whole key.
  std::vector<std::pair<std::string, std::string>> foreign;
  std::shared_ptr<const void> defaults;  // a struct as it is made; shared like Part::schema

  const Field* find_field(std::string_view name) const;
  const Part* find_part(std::string_view name) const;
  std::vector<std::string> names() const;
};

namespace detail {

/// Between a member's type and Value, and what the type alone says about the field.
template <typename T>
struct Codec;

template <>
struct Codec<bool> {
  using Limit = std::int64_t;
  static void describe(Field& field) { field.kind = Kind::kBool; }
  static Value to(bool value) { return {value}; }
  static bool from(const Value& value) { return std::get<bool>(value.of); }
};

template <std::signed_integral T>
struct Codec<T> {
  using Limit = std::int64_t;
  static void describe(Field& field) {
    field.kind = Kind::kWhole;
    if constexpr (sizeof(T) < sizeof(std::int64_t)) {
      field.low = Bound{.whole = std::numeric_limits<T>::min()};
      field.high = Bound{.whole = std::numeric_limits<T>::max()};
    }
  }
  static Value to(T value) { return {static_cast<std::int64_t>(value)}; }
  static T from(const Value& value) { return static_cast<T>(std::get<std::int64_t>(value.of)); }
};

template <>
struct Codec<double> {
  using Limit = double;
  static void describe(Field& field) { field.kind = Kind::kReal; }
  static Value to(double value) { return {value}; }
  static double from(const Value& value) { return std::get<double>(value.of); }
};

template <>
struct Codec<std::string> {
  using Limit = std::int64_t;
  static void describe(Field& field) { field.kind = Kind::kText; }
  static Value to(const std::string& value) { return {value}; }
  static std::string from(const Value& value) { return std::get<std::string>(value.of); }
};

template <typename T>
requires std::is_enum_v<T>
struct Codec<T> {
  using Limit = std::int64_t;
  static void describe(Field& field) {
    field.kind = Kind::kChoice;
    for (const auto& entry : enum_names(std::type_identity<T>{})) field.choices.emplace_back(entry.name);
  }
  static Value to(T value) { return {std::string(name_in(enum_names(std::type_identity<T>{}), value))}; }
  static T from(const Value& value) {
    for (const auto& entry : enum_names(std::type_identity<T>{})) {
      if (entry.name == std::get<std::string>(value.of)) return entry.value;
    }
    throw InternalError("a choice was not checked before it was stored");
  }
};

template <typename Rep, typename Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using T = std::chrono::duration<Rep, Period>;
  using Limit = std::chrono::nanoseconds;
  static void describe(Field& field) { field.kind = Kind::kDuration; }
  static Value to(T value) { return {std::int64_t{std::chrono::nanoseconds(value).count()}}; }
  static T from(const Value& value) {
    return std::chrono::duration_cast<T>(std::chrono::nanoseconds(std::get<std::int64_t>(value.of)));
  }
};

template <typename T>
struct Codec<std::optional<T>> {
  using Limit = typename Codec<T>::Limit;
  static void describe(Field& field) {
    Codec<T>::describe(field);
    field.optional = true;
  }
  static Value to(const std::optional<T>& value) { return value ? Codec<T>::to(*value) : Value{}; }
  static std::optional<T> from(const Value& value) {
    if (std::holds_alternative<std::monostate>(value.of)) return std::nullopt;
    return Codec<T>::from(value);
  }
};

template <typename T>
struct Codec<std::vector<T>> {
  using Limit = typename Codec<T>::Limit;
  static void describe(Field& field) {
    Codec<T>::describe(field);
    field.list = true;
  }
  static Value to(const std::vector<T>& values) {
    std::vector<Value> out;
    for (const auto& value : values) out.push_back(Codec<T>::to(value));
    return {std::move(out)};
  }
  static std::vector<T> from(const Value& value) {
    std::vector<T> out;
    for (const Value& item : std::get<std::vector<Value>>(value.of)) out.push_back(Codec<T>::from(item));
    return out;
  }
};

inline Bound bound(std::int64_t limit, bool included) { return {.whole = limit, .included = included}; }
inline Bound bound(double limit, bool included) { return {.real = limit, .included = included}; }
inline Bound bound(std::chrono::nanoseconds limit, bool included) {
  return {.whole = limit.count(), .included = included};
}

/// Keys are written without quotes, so only letters, digits, '_' and '-' will do; and no two may have one name.
void check_new_name(const Schema& schema, std::string_view name);
/// An optional key must be unset by default: TOML has no word for "unset", so it could not be written otherwise.
void check_defaults(const Schema& schema);

}  // namespace detail

/// What else holds for a field; for lists and optional values, for each value in them.
template <typename T>
class FieldRules {
 public:
  using Limit = typename detail::Codec<T>::Limit;
  explicit FieldRules(Field& field) : field_(field) {}

  FieldRules& at_least(Limit least) {
    field_.low = detail::bound(least, true);
    return *this;
  }
  FieldRules& above(Limit limit) {
    field_.low = detail::bound(limit, false);
    return *this;
  }
  FieldRules& at_most(Limit most) {
    field_.high = detail::bound(most, true);
    return *this;
  }
  FieldRules& range(Limit least, Limit most) { return at_least(least).at_most(most); }
  /// What a whole number counts, and so which suffixes it takes (units.h).
  FieldRules& unit(Unit unit) {
    field_.unit = unit;
    return *this;
  }
  /// There is no sensible default: it must be given.
  FieldRules& required() {
    field_.required = true;
    return *this;
  }

 private:
  Field& field_;
};

/// Collects the description of T; handed to describe(Section<T>&), which stands in T's namespace.
template <typename T>
class Section {
 public:
  /// One line: what the section is about.
  void meaning(std::string text) { schema_.meaning = std::move(text); }

  template <typename M>
  FieldRules<M> field(std::string name, M T::*member, std::string meaning) {
    detail::check_new_name(schema_, name);
    Field& field = schema_.fields.emplace_back();
    field.name = std::move(name);
    field.meaning = std::move(meaning);
    detail::Codec<M>::describe(field);
    field.get = [member](const void* section) { return detail::Codec<M>::to(static_cast<const T*>(section)->*member); };
    field.set = [member](void* section, const Value& value) {
      static_cast<T*>(section)->*member = detail::Codec<M>::from(value);
    };
    return FieldRules<M>(field);
  }

  /// A described struct as a section of its own: [name].
  template <typename S>
  void section(std::string name, S T::*member);
  /// Likewise one that is a member of a member: the file has it beside the section that holds it.
  template <typename M, typename S>
  void section(std::string name, M T::*holder, S M::*member);
  /// Any number of them: [[name]].
  template <typename S>
  void tables(std::string name, std::vector<S> T::*member);

  /// A key was called `before`: an error for it names `now`, the key that replaced it. Not an alias.
  void retired(std::string before, std::string now) { schema_.retired.emplace_back(std::move(before), std::move(now)); }
  /// Other programs call the key `key` ("optim.learning_rate", in full) so: an error for that name, in whichever
  /// section, names ours. Not an alias. For the outermost section.
  void foreign(std::string name, std::string key) { schema_.foreign.emplace_back(std::move(name), std::move(key)); }
  /// A section of this name is to come: an error for it says so instead of guessing at another one.
  void reserved(std::string name, std::string purpose) {
    schema_.reserved.emplace_back(std::move(name), std::move(purpose));
  }

  Schema take() { return std::move(schema_); }

 private:
  Schema schema_;
};

template <typename T>
Schema schema_of() {
  Section<T> section;
  describe(section);
  Schema schema = section.take();
  schema.defaults = std::make_shared<const T>();
  detail::check_defaults(schema);
  return schema;
}

template <typename T>
template <typename S>
void Section<T>::section(std::string name, S T::*member) {
  detail::check_new_name(schema_, name);
  Part& part = schema_.parts.emplace_back();
  part.name = std::move(name);
  part.schema = std::make_shared<const Schema>(schema_of<S>());
  part.size = [](const void*) { return std::size_t{1}; };
  part.at = [member](const void* section, std::size_t) -> const void* {
    return &(static_cast<const T*>(section)->*member);
  };
}

template <typename T>
template <typename M, typename S>
void Section<T>::section(std::string name, M T::*holder, S M::*member) {
  detail::check_new_name(schema_, name);
  Part& part = schema_.parts.emplace_back();
  part.name = std::move(name);
  part.schema = std::make_shared<const Schema>(schema_of<S>());
  part.size = [](const void*) { return std::size_t{1}; };
  part.at = [holder, member](const void* section, std::size_t) -> const void* {
    return &((static_cast<const T*>(section)->*holder).*member);
  };
}

template <typename T>
template <typename S>
void Section<T>::tables(std::string name, std::vector<S> T::*member) {
  detail::check_new_name(schema_, name);
  Part& part = schema_.parts.emplace_back();
  part.name = std::move(name);
  part.schema = std::make_shared<const Schema>(schema_of<S>());
  part.list = true;
  part.size = [member](const void* section) { return (static_cast<const T*>(section)->*member).size(); };
  part.resize = [member](void* section, std::size_t size) { (static_cast<T*>(section)->*member).resize(size); };
  part.at = [member](const void* section, std::size_t index) -> const void* {
    return &(static_cast<const T*>(section)->*member)[index];
  };
}

}  // namespace trireme::config
