// What the tests of token files share: a folder that vanishes, files written byte by byte by hand, damage.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/errors.h"
#include "tests/files.h"
#include "trireme/base/random.h"
#include "trireme/data/shard_writer.h"
#include "trireme/data/token_file.h"

namespace trireme::data {

namespace fs = std::filesystem;

/// Appends a number's bytes, lowest first, whatever the machine.
template <typename T>
void put(std::string& out, std::type_identity_t<T> value) {
  auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i, bits >>= 8) out.push_back(static_cast<char>(bits & 0xFF));
}

using Documents = std::vector<std::vector<std::int32_t>>;

/// Documents of 0 to `longest` random tokens.
inline Documents random_documents(std::uint64_t seed, std::size_t count, std::uint64_t longest,
                                  std::uint64_t vocabulary) {
  const Random random(seed, "documents");
  Documents documents(count);
  std::uint64_t draw = 0;
  for (auto& document : documents) {
    document.resize(random.below(longest + 1, draw++));
    for (auto& token : document) token = static_cast<std::int32_t>(random.below(vocabulary, draw++));
  }
  return documents;
}

inline void write_shard(const fs::path& path, const Documents& documents, ShardInfo info) {
  ShardWriter writer(path, std::move(info));
  for (const auto& document : documents) writer.add_document(document);
  writer.finish();
}

inline std::vector<std::int32_t> read_tokens(const TokenFile& file, std::int64_t first, std::int64_t count) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  file.read(first, out);
  return out;
}

/// Every token and boundary as the documents have them.
inline void expect_documents(const TokenFile& file, const Documents& documents) {
  ASSERT_EQ(file.documents(), static_cast<std::int64_t>(documents.size()));
  std::int64_t at = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const auto size = static_cast<std::int64_t>(documents[d].size());
    ASSERT_EQ(file.document_begin(static_cast<std::int64_t>(d)), at);
    EXPECT_EQ(read_tokens(file, at, size), documents[d]);
    for (std::int64_t token = at; token < at + size; ++token)
      ASSERT_EQ(file.document_of(token), static_cast<std::int64_t>(d)) << token;
    at += size;
  }
  EXPECT_EQ(file.document_begin(file.documents()), at);
  EXPECT_EQ(file.tokens(), at);
}

}  // namespace trireme::data
