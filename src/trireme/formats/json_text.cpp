#include "trireme/formats/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/formats/json_reader.h"

namespace trireme::formats {
namespace {

using Json = nlohmann::ordered_json;

Json read_value(JsonReader& json) {
  using Kind = JsonReader::Kind;
  switch (json.peek()) {
    case Kind::kObject: {
      Json::object_t object;
      std::unordered_set<std::string> seen;
      json.object([&](std::string key) {
        if (!seen.insert(key).second)
          json.fail(json.key_position(), fmt::format("the key {} is there twice", shown(key)));
        // By the vector under it: the map's own way to insert looks through all keys for each new one.
        static_cast<Json::object_t::Container&>(object).emplace_back(std::move(key), read_value(json));
      });
      return object;
    }
    case Kind::kArray: {
      Json::array_t array;
      json.array([&] { array.push_back(read_value(json)); });
      return array;
    }
    case Kind::kString:
      return json.string();
    case Kind::kNumber:
      return std::visit([](auto number) { return Json(number); }, json.number());
    case Kind::kTrue:
    case Kind::kFalse:
      return json.boolean();
    case Kind::kNull:
      json.null();
      return nullptr;
  }
  return nullptr;
}

void append_escape(std::string& out, unsigned char c) {
  static constexpr std::string_view kMeanings = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  if (const std::size_t i = kMeanings.find(static_cast<char>(c)); i != kMeanings.npos) {
    out += '\\';
    out += kLetters[i];
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
  }
}

/// The character at the start of `text`, and its bytes. The text is UTF-8, as all our texts from files are checked to
/// be; of other bytes each is taken for itself.
std::pair<unsigned, std::size_t> decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const std::size_t length = byte(0) < 0xC0 ? 1 : byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  if (length == 1 || length > text.size()) return {byte(0), 1};
  unsigned code = byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, length};
}

void write_value(std::string& out, const Json& value, Keys keys, std::size_t depth);

void write_line(std::string& out, std::size_t depth, bool first) {
  if (!first) out += ',';
  out += '\n';
  out.append(2 * depth, ' ');
}

void write_object(std::string& out, const Json& value, Keys keys, std::size_t depth) {
  std::vector<const Json::object_t::value_type*> members;
  for (const auto& member : value.get_ref<const Json::object_t&>()) members.push_back(&member);
  // Python sorts by code points, which is the order of the bytes of UTF-8.
  if (keys == Keys::kSorted)
    std::ranges::sort(
        members, {}, [](const auto* member) -> auto& { return member->first; });
  out += '{';
  for (const auto* member : members) {
    write_line(out, depth + 1, member == members.front());
    out += python_string(member->first);
    out += ": ";
    write_value(out, member->second, keys, depth + 1);
  }
  write_line(out, depth, true);
  out += '}';
}

void write_value(std::string& out, const Json& value, Keys keys, std::size_t depth) {
  switch (value.type()) {
    case Json::value_t::object:
      if (!value.empty()) return write_object(out, value, keys, depth);
      out += "{}";
      return;
    case Json::value_t::array:
      out += '[';
      for (std::size_t i = 0; i < value.size(); ++i) {
        write_line(out, depth + 1, i == 0);
        write_value(out, value[i], keys, depth + 1);
      }
      if (!value.empty()) write_line(out, depth, true);
      out += ']';
      return;
    case Json::value_t::string:
      out += python_string(value.get_ref<const std::string&>());
      return;
    case Json::value_t::number_float:
      out += python_double(value.get<double>());
      return;
    case Json::value_t::number_integer:
      out += std::to_string(value.get<std::int64_t>());
      return;
    case Json::value_t::number_unsigned:
      out += std::to_string(value.get<std::uint64_t>());
      return;
    case Json::value_t::boolean:
      out += value.get<bool>() ? "true" : "false";
      return;
    default:
      TRIREME_CHECK(value.is_null(), "a JSON tree of a {}", value.type_name());
      out += "null";
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view source, std::uint64_t first_byte) {
  JsonReader json(text, source, first_byte, JsonReader::Dialect::kPython);
  Json value = read_value(json);
  json.end();
  return value;
}

std::string python_json(const Json& value, Keys keys) {
  std::string out;
  write_value(out, value, keys, 0);
  return out;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      append_escape(out, static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

std::string python_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const auto [code, length] = decode(text);
    if (code >= 0x10000) {
      const unsigned above = code - 0x10000;
      fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}", 0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF));
    } else if (code >= 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else if (code < 0x20 || code == '"' || code == '\\') {
      append_escape(out, static_cast<unsigned char>(code));
    } else {
      out += static_cast<char>(code);
    }
    text.remove_prefix(length);
  }
  out += '"';
  return out;
}

std::string python_double(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  // Python prints exponents below -4 and from 16 up, to_chars whatever is shorter; so the form is chosen here.
  const double size = std::abs(value);
  const bool plain = value == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value,
                                    plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(buffer, result.ptr);
  if (plain && out.find('.') == out.npos) out += ".0";
  return out;
}

}  // namespace trireme::formats
