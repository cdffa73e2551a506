// data/tokenizer/read_parts.h -- the parts of a tokenizer.json, from JSON to description: the model, which can be large
// and is read without a tree, and the sections around it.
//
// Depends on: description, formats, nlohmann json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/json_reader.h"

namespace trireme::data {

/// A part of a JSON tree that knows its place in the file, so that errors can name it.
///
///   JsonSection section(tree, {.source = "tokenizer.json", .byte = 120}, "pre_tokenizer");
///   const bool invert = section.flag("invert");
///   section.end();   // keys that nobody asked for are errors: they may change results
class JsonSection {
 public:
  using Json = nlohmann::ordered_json;
  struct Place {
    std::string_view source;
    std::uint64_t byte = 0;  ///< where the outermost section begins
  };

  /// Everything is borrowed.
  JsonSection(const Json& value, Place place, std::string path)
      : value_(value), place_(place), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return value_.is_null(); }
  bool has(const std::string& key) const { return object().contains(key) && !object()[key].is_null(); }

  JsonSection at(const std::string& key) {
    used_.insert(key);
    if (!object().contains(key)) fail("the key \"" + key + "\" is missing");
    return JsonSection(object()[key], place_, path_ + "." + key);
  }
  std::vector<JsonSection> list(const std::string& key) {
    const JsonSection section = at(key);
    if (!section.value_.is_array()) section.fail("a list [...] is expected");
    std::vector<JsonSection> items;
    for (std::size_t i = 0; i < section.value_.size(); ++i)
      items.emplace_back(section.value_[i], place_, fmt::format("{}[{}]", section.path_, i));
    return items;
  }
  std::vector<std::string> keys() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : object().items()) names.push_back(key);
    return names;
  }

  std::string text() const {
    if (!value_.is_string()) fail("a text in \"quotes\" is expected");
    return value_.get<std::string>();
  }
  bool flag() const {
    if (!value_.is_boolean()) fail("true or false is expected");
    return value_.get<bool>();
  }
  /// From 0 to 2^31 - 1.
  std::int32_t number() const {
    const bool fits = value_.is_number_integer() && value_ >= 0 && value_ <= 0x7FFF'FFFF;
    if (!fits) fail("a whole number from 0 to 2147483647 is expected");
    return value_.get<std::int32_t>();
  }
  std::string text(const std::string& key) { return at(key).text(); }
  bool flag(const std::string& key) { return at(key).flag(); }
  std::int32_t number(const std::string& key) { return at(key).number(); }
  /// When the key is missing: `otherwise`.
  bool flag(const std::string& key, bool otherwise) { return object().contains(key) ? flag(key) : otherwise; }
  void allow(const std::string& key) { used_.insert(key); }

  /// Every key must have been asked for.
  void end() const {
    for (const auto& [key, value] : object().items()) {
      if (!used_.contains(key))
        fail("the key " + formats::shown(key) + " is not supported",
             "it may change which tokens a text becomes, so it is not ignored");
    }
  }

  [[noreturn]] void fail(std::string_view what, std::string hint = {}) const {
    throw formats::FormatError(fmt::format("{}: {}: {} (byte {})", place_.source, path_, what, place_.byte),
                               std::move(hint));
  }

 private:
  const Json& object() const {
    if (!value_.is_object()) fail("an object {...} is expected");
    return value_;
  }

  const Json& value_;
  Place place_;
  std::string path_;
  std::set<std::string> used_;
};

/// BPE, WordPiece or Unigram, as the type says; in old files, which do not say it, as the members say.
ModelDescription read_model(formats::JsonReader& json);

NormalizerPart read_normalizer(JsonSection section);
PreTokenizerPart read_pre_tokenizer(JsonSection section);
PostProcessorPart read_post_processor(JsonSection section);
DecoderPart read_decoder(JsonSection section);
AddedToken read_added_token(JsonSection section);

}  // namespace trireme::data
