#include "trireme/serve/api/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/http/message.h"

namespace trireme::serve::api {
namespace {

std::string shown_value(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace

void refuse_field(std::string_view field, std::string message, std::string code) {
  throw http::HttpError(400, std::move(message),
                        {.type = "invalid_request_error", .code = std::move(code), .param = std::string(field)});
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

const Json* Fields::take(std::string_view name) {
  taken_.emplace(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) {
    refuse_field(path(name), fmt::format("{} must be true or false, not {}", path(name), shown_value(*value)),
                 "invalid_type");
  }
  return value->get<bool>();
}

std::optional<std::int64_t> Fields::whole(std::string_view name, std::int64_t least, std::int64_t most) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_number_integer()) {
    refuse_field(path(name), fmt::format("{} must be a whole number, not {}", path(name), shown_value(*value)),
                 "invalid_type");
  }
  const bool huge = value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  if (huge || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
    refuse_field(path(name),
                 fmt::format("{} must be from {} to {}, not {}", path(name), least, most, shown_value(*value)));
  }
  return value->get<std::int64_t>();
}

std::optional<double> Fields::number(std::string_view name, double least, double most) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    refuse_field(path(name), fmt::format("{} must be a number, not {}", path(name), shown_value(*value)),
                 "invalid_type");
  }
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) {
    refuse_field(path(name),
                 fmt::format("{} must be from {} to {}, not {}", path(name), least, most, shown_value(*value)));
  }
  return number;
}

std::optional<std::string> Fields::text(std::string_view name) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    refuse_field(path(name), fmt::format("{} must be a text, not {}", path(name), shown_value(*value)), "invalid_type");
  }
  return value->get<std::string>();
}

void Fields::only(std::string_view name, const std::vector<Json>& harmless, std::string_view why) {
  const Json* value = take(name);
  if (!value || std::ranges::find(harmless, *value) != harmless.end()) return;
  refuse_field(path(name), fmt::format("{} = {} is not supported: {}", path(name), shown_value(*value), why),
               "unsupported_parameter");
}

void Fields::end() const {
  for (const auto& [name, value] : object_.items()) {
    if (taken_.contains(name)) continue;
    refuse_field(path(name), fmt::format("{} is not a field that is known here", path(name)), "unknown_parameter");
  }
}

}  // namespace trireme::serve::api
