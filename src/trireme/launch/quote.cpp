#include "trireme/launch/quote.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::launch {
namespace {

bool is_plain(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
         std::string_view("_@%+=:,./-").find(letter) != std::string_view::npos;
}

bool is_keyword(std::string_view word) {
  static constexpr std::string_view kWords[] = {"if",   "then",  "else",     "elif",   "fi",   "do",    "done",
                                                "case", "esac",  "for",      "while",  "in",   "{",     "}",
                                                "!",    "until", "function", "select", "time", "coproc"};
  return std::ranges::find(kWords, word) != std::end(kWords);
}

std::string in_single_quotes(std::string_view word) {
  std::string out = "'";
  for (const char letter : word) {
    if (letter == '\'') {
      out += R"('\'')";  // end the quotes, a quote, begin again
    } else {
      out += letter;
    }
  }
  return out + "'";
}

}  // namespace

std::string sh_word(std::string_view word) {
  if (word.find('\0') != std::string_view::npos) {
    throw ConfigError("a word of the command holds a NUL byte, which no argument of a program can",
                      "look at the names and values of the recipe and the command line");
  }
  const bool plain = !word.empty() && std::ranges::all_of(word, is_plain);
  return plain ? std::string(word) : in_single_quotes(word);
}

std::string sh_line(std::span<const std::string> words) {
  std::string out;
  for (const std::string& word : words) {
    const bool first = out.empty();
    const std::string text = sh_word(word);
    const bool taken_otherwise = first && text == word && (word.find('=') != word.npos || is_keyword(word));
    if (!first) out += ' ';
    out += taken_otherwise ? in_single_quotes(word) : text;
  }
  return out;
}

std::string sbatch_value(std::string_view value) {
  if (value.find_first_of(std::string_view("\n\r\0", 3)) != std::string_view::npos) {
    throw ConfigError(fmt::format("\"{}\" holds a line break, which a line of sbatch cannot",
                                  std::string(value.substr(0, value.find_first_of("\n\r")))),
                      "choose a name without line breaks");
  }
  if (!value.empty() && std::ranges::all_of(value, is_plain)) return std::string(value);
  std::string out = "\"";
  for (const char letter : value) {
    if (letter == '"' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + "\"";
}

std::string yaml_text(std::string_view text) {
  try {
    return nlohmann::json(std::string(text)).dump(-1, ' ', /*ensure_ascii=*/true);  // JSON's texts are YAML's
  } catch (const nlohmann::json::exception&) {
    throw ConfigError("a name or value is not UTF-8, which a manifest must be",
                      "look at the names and values of the recipe and the command line");
  }
}

std::string dns_label(std::string_view text, std::size_t longest) {
  std::string out;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const char lower = byte < 128 && std::isalnum(byte) != 0 ? static_cast<char>(std::tolower(byte)) : '-';
    if (lower == '-' && (out.empty() || out.back() == '-')) continue;
    if (out.empty() && std::isdigit(static_cast<unsigned char>(lower)) != 0) out = "r";  // a label begins with a letter
    out += lower;
  }
  out.resize(std::min(out.size(), longest));
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "run" : out;
}

}  // namespace trireme::launch
