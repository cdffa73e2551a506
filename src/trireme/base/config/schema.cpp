#include "trireme/base/config/schema.h"

#include <algorithm>
#include <cctype>

namespace trireme::config {

const Field* Schema::find_field(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &Field::name);
  return found == fields.end() ? nullptr : &*found;
}
const Part* Schema::find_part(std::string_view name) const {
  const auto found = std::ranges::find(parts, name, &Part::name);
  return found == parts.end() ? nullptr : &*found;
}
std::vector<std::string> Schema::names() const {
  std::vector<std::string> out;
  for (const Field& field : fields) out.push_back(field.name);
  for (const Part& part : parts) out.push_back(part.name);
  return out;
}

void detail::check_new_name(const Schema& schema, std::string_view name) {
  const auto bare = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  TRIREME_CHECK(!name.empty() && std::ranges::all_of(name, bare), "\"{}\" cannot be written as a bare TOML key", name);
  TRIREME_CHECK(schema.find_field(name) == nullptr && schema.find_part(name) == nullptr,
                "two keys of one section are called {}", name);
}

namespace {

/// "model.mla" too: a key or section in a section.
bool has_key(const Schema& schema, std::string_view path) {
  const std::size_t dot = path.find('.');
  const Part* part = schema.find_part(path.substr(0, dot));
  if (dot == std::string_view::npos) return part != nullptr || schema.find_field(path) != nullptr;
  return part != nullptr && has_key(*part->schema, path.substr(dot + 1));
}

}  // namespace

void detail::check_defaults(const Schema& schema) {
  for (const Field& field : schema.fields) {
    TRIREME_CHECK(!field.optional || std::holds_alternative<std::monostate>(field.get(schema.defaults.get()).of),
                  "optional key {} has a default; make it a plain member", field.name);
  }
  for (const auto& [before, now] : schema.retired) {
    TRIREME_CHECK(schema.find_field(before) == nullptr && schema.find_part(before) == nullptr,
                  "{} is listed as retired, but it is a key", before);
    TRIREME_CHECK(has_key(schema, now), "the retired key {} points at {}, which is no key", before, now);
  }
  for (const auto& [name, purpose] : schema.reserved) {
    TRIREME_CHECK(schema.find_field(name) == nullptr && schema.find_part(name) == nullptr,
                  "{} is listed as reserved, but it is a key", name);
  }
}

}  // namespace trireme::config
