// What a folder of token files holds, for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/data/corpus/tokenize_corpus.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/token_file.h"
#include "trireme/formats/json_text.h"

namespace trireme::data {
namespace fs = std::filesystem;

namespace {

/// "3 files, 1.2 GB of text: /data/a.jsonl, ..." of a tokenize.json; nothing without one.
std::string made_of(const fs::path& folder) {
  const fs::path path = folder / kPlanName;
  if (!fs::exists(path)) return {};
  const auto plan = formats::parse_json(read_text_file(path, kMostPlanBytes), path.string());
  if (!plan.is_object() || !plan.contains("files") || !plan["files"].is_array()) return {};
  std::uint64_t bytes = 0;
  std::vector<std::string> names;
  for (const auto& file : plan["files"]) {
    if (!file.is_object()) continue;
    if (file.contains("bytes") && file["bytes"].is_number_integer()) bytes += file["bytes"].get<std::uint64_t>();
    if (file.contains("path") && file["path"].is_string() && names.size() < 3)
      names.push_back(file["path"].get<std::string>());
  }
  const std::size_t files = plan["files"].size();
  return fmt::format("{}, {}: {}{}{}", counted(files, "file"), short_bytes(static_cast<double>(bytes)),
                     fmt::join(names, ", "), files > names.size() ? ", ..." : "",
                     plan.value("failed", false) ? "; the call failed, so shards are missing" : "");
}

}  // namespace

std::vector<std::string> describe_folder(const fs::path& folder, bool verify, std::size_t most) {
  std::vector<std::string> lines, each;
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t bytes = 0;
  std::size_t masked = 0;
  std::vector<std::string> formats_seen, tokenizers;
  std::int64_t vocabulary = 0;
  std::string special;
  const std::vector<fs::path> paths = token_paths(folder);
  const auto note = [](std::vector<std::string>& seen, std::string what) {
    if (std::ranges::find(seen, what) == seen.end()) seen.push_back(std::move(what));
  };
  for (const fs::path& path : paths) {
    const TokenFile file(path);
    if (verify) file.verify();
    tokens += file.tokens();
    documents += file.documents();
    bytes += file.bytes();
    masked += file.has_mask() ? 1 : 0;
    note(formats_seen, fmt::format("{}, {} each", to_string(file.format()), to_string(file.type())));
    note(tokenizers, tokenizer_text(file.info()));
    vocabulary = std::max(vocabulary, file.info().vocab_size);
    if (special.empty()) special = special_text(file.info().special);
    if (each.size() < most)
      each.push_back(fmt::format("{}: {} tokens in {}", path.filename().string(), file.tokens(),
                                 counted(static_cast<std::size_t>(file.documents()), "document")));
  }
  const auto add = [&](const char* name, std::string_view text) {
    if (!text.empty()) lines.push_back(fmt::format("{:<11}{}", name, text));
  };
  add("shards", fmt::format("{} in {}", paths.size(), folder.string()));
  add("format", fmt::format("{}", fmt::join(formats_seen, "; ")));
  add("bytes", fmt::format("{} ({})", bytes, short_bytes(static_cast<double>(bytes))));
  add("tokens", fmt::format("{} ({})", tokens, short_count(static_cast<double>(tokens))));
  add("documents", std::to_string(documents));
  add("vocabulary", vocabulary == 0 ? std::string("unknown") : std::to_string(vocabulary));
  add("tokenizer", fmt::format("{}{}", fmt::join(tokenizers, "; "),
                               tokenizers.size() > 1 ? ": files of different tokenizers are not blended" : ""));
  add("special", special);
  if (masked > 0) add("mask", fmt::format("in {} of {}: says which tokens are learnt", masked, paths.size()));
  add("made of", made_of(folder));
  add("checksums", verify ? "all right" : "header and tables are right; tokens are checked as they are read");
  lines.insert(lines.end(), each.begin(), each.end());
  if (paths.size() > each.size()) lines.push_back(fmt::format("and {} more", paths.size() - each.size()));
  return lines;
}

}  // namespace trireme::data
