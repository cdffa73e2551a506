// What the tests of tokenizers share: the fixtures made with the Hugging Face library, folders that vanish, random
// text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/errors.h"
#include "tests/files.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/data/tokenizer/utf8_text.h"
#include "trireme/formats/json_text.h"

namespace trireme::data {

inline std::filesystem::path tokenizer_fixtures() { return std::filesystem::path(TRIREME_FIXTURES) / "tokenizers"; }

inline const std::vector<std::string>& fixture_names() {
  static const std::vector<std::string> names{"gpt2",         "llama3", "qwen",      "llama2", "mistral",       "odd",
                                              "prefix_space", "bert",   "wordpiece", "t5",     "unigram_bytes", "nfkc"};
  return names;
}

inline nlohmann::ordered_json read_fixture(const std::string& name) {
  const auto path = tokenizer_fixtures() / name;
  return formats::parse_json(read_all(path), path.string());
}

inline std::unique_ptr<Tokenizer> fixture_tokenizer(const std::string& name) {
  return load_tokenizer((tokenizer_fixtures() / (name + ".json")).string());
}

/// Text of every class of characters that the split patterns tell apart, in short runs.
inline std::string random_text(std::mt19937_64& draw, std::size_t characters) {
  static const std::vector<std::vector<std::uint32_t>> kClasses{
      {'a', 'z', 'S',  's',   't',   'l',   'L',    'R',    'e',     'v',
       'd', 'm', 0xE9, 0x17F, 0x416, 0x3B1, 0x4E2D, 0xAC00, 0x1D400, 0x2B0},
      {'0', '1', '9', 0xBD, 0xB2, 0x663, 0x966, 0x2167, 0x1D7CE},
      {' ', ' ', ' ', ' '},
      {'\t', '\n', '\r', '\v', '\f', 0x85, 0xA0, 0x2003, 0x2028, 0x3000},
      {'\n', '\r', '\n'},
      {'\''},
      {'!', '.', '<', '_', '|', 0x180E, 0x200D, 0x301, 0x20AC, 0x2581, 0x1F600, 0xE000, 0x0, 0x10FFFF}};
  std::string out;
  for (std::size_t i = 0; i < characters;) {
    const auto& letters = kClasses[draw() % kClasses.size()];
    for (std::size_t run = 1 + draw() % 4; run > 0 && i < characters; --run, ++i)
      append_utf8(out, letters[draw() % letters.size()]);
  }
  return out;
}

}  // namespace trireme::data
