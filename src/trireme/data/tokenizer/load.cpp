// load_tokenizer: from a word, a file or a folder; and which tokens begin and end texts.
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/json_text.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = 1'000'000'000;

/// The names that published families use; a tokenizer_config.json says it exactly.
constexpr std::string_view kBegins[] = {"<|begin_of_text|>", "<s>", "<|endoftext|>"};
constexpr std::string_view kEnds[] = {"<|end_of_text|>", "</s>", "<|endoftext|>"};
constexpr std::string_view kMasks[] = {"[MASK]"}, kClasses[] = {"[CLS]"}, kSeparators[] = {"[SEP]"},
                           kPads[] = {"[PAD]"};

std::optional<std::int32_t> first_special(const Tokenizer& tokenizer, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    const auto id = tokenizer.find(name);
    if (id && tokenizer.is_special(*id)) return id;
  }
  return std::nullopt;
}

/// A role in tokenizer_config.json is a text, or an object with the text as "content".
std::optional<std::int32_t> role_in(const nlohmann::ordered_json& config, const char* key, const Tokenizer& tokenizer,
                                    const fs::path& path, bool must_be_there = true) {
  if (!config.is_object() || !config.contains(key) || config[key].is_null()) return std::nullopt;
  const auto& value = config[key];
  const auto& text = value.is_object() && value.contains("content") ? value["content"] : value;
  const auto id = text.is_string() ? tokenizer.find(text.get<std::string>()) : std::nullopt;
  if (!id && must_be_there)
    throw formats::FormatError(fmt::format(
        "{}: {}: {} is no token of {}", path.string(), key,
        formats::shown(text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)), tokenizer.source()));
  return id;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path_or_name) {
  if (path_or_name == "bytes") return Tokenizer::bytes();
  fs::path path = path_or_name;
  if (fs::is_directory(path)) {
    path /= "tokenizer.json";
    if (!fs::exists(path))
      throw ConfigError(fmt::format("the folder {} holds no tokenizer.json", path_or_name),
                        "name a folder or file that has one, or the word bytes");
  } else if (!fs::exists(path)) {
    throw ConfigError(fmt::format("there is no tokenizer {}", path_or_name),
                      "name a tokenizer.json, a folder that holds one, or the word bytes");
  }
  auto tokenizer =
      std::make_unique<Tokenizer>(parse_tokenizer_json(read_text_file(path, kMaxBytes), path.string()), path.string());
  TokenRoles roles{.bos = first_special(*tokenizer, kBegins),
                   .eos = first_special(*tokenizer, kEnds),
                   .pad = first_special(*tokenizer, kPads),
                   .mask = first_special(*tokenizer, kMasks),
                   .cls = first_special(*tokenizer, kClasses),
                   .sep = first_special(*tokenizer, kSeparators)};
  const fs::path config_path = path.parent_path() / "tokenizer_config.json";
  if (fs::exists(config_path)) {
    const auto config = formats::parse_json(read_text_file(config_path, kMaxBytes), config_path.string());
    // What it does not name is not there: a family may have no begin-of-text token on purpose.
    roles = {.bos = role_in(config, "bos_token", *tokenizer, config_path),
             .eos = role_in(config, "eos_token", *tokenizer, config_path)};
    // The library adds these when it loads a folder, so that a file may lack what its configuration names.
    const auto masked = [&](const char* key) { return role_in(config, key, *tokenizer, config_path, false); };
    if ((roles.mask = masked("mask_token"))) {
      roles.pad = masked("pad_token");
      roles.cls = masked("cls_token");
      roles.sep = masked("sep_token");
    }
  }
  tokenizer->set_roles(roles);
  return tokenizer;
}

}  // namespace trireme::data
