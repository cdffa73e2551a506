// How fast is encoding, beside the Hugging Face tokenizers library on the same text, one thread each?
//
//   build/release/bench/tokenize --tokenizer tokenizer.json --text corpus.txt --python VENV/bin/python
//
// Both cut the text into documents of the same bytes, encode all of them in turns, and must give the same tokens. Times
// are of the processor, so other programs disturb them little.
// Without a tokenizer, the ones in tests/fixtures/tokenizers; without a text, their sentences many times over, which
// flatters every cache: name a real one for figures to keep.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/arguments.h"
#include "bench/peer.h"
#include "bench/times.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/text.h"
#include "trireme/data/tokenizer/tokenizer.h"

namespace {

using namespace trireme;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Options {
  std::vector<std::string> tokenizers;
  std::string text, python;
  std::size_t document_bytes = 4096;
  int rounds = 5;
};

struct Result : bench::Times {
  std::uint64_t tokens = 0, checksum = 0;
};

class Peer {
 public:
  Peer(const Options& options, const std::string& tokenizer)
      : process_({options.python, TRIREME_BENCH_DIR "/peers/encode_text.py", "--tokenizer", tokenizer, "--text",
                  options.text, "--document-bytes", std::to_string(options.document_bytes)}) {}

  void run(Result& result) {
    const auto answer = process_.ask("run 1");
    for (const double each : answer["seconds"]) result.seconds.push_back(each);
    result.tokens = answer["tokens"];
    result.checksum = answer["checksum"];
  }

 private:
  bench::PeerProcess process_;
};

std::vector<std::string_view> documents_of(std::string_view text, std::size_t bytes) {
  std::vector<std::string_view> documents;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t newline = text.find('\n', std::min(begin + bytes, text.size()));
    const std::size_t end = newline == text.npos ? text.size() : newline + 1;
    documents.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return documents;
}

void run_ours(const data::Tokenizer& tokenizer, const std::vector<std::string_view>& documents, Result& result) {
  std::vector<std::vector<std::int32_t>> all(documents.size());
  const double begin = processor_seconds();
  for (std::size_t i = 0; i < documents.size(); ++i) all[i] = tokenizer.encode(documents[i], {.add_special = false});
  result.seconds.push_back(processor_seconds() - begin);
  result.tokens = result.checksum = 0;
  for (const auto& ids : all) {
    result.tokens += ids.size();
    for (const std::int32_t id : ids)
      result.checksum = (result.checksum * 31 + static_cast<unsigned>(id)) % (std::uint64_t{1} << 61);
  }
}

void compare(const Options& options, const std::string& path, TextTable& table) {
  const auto tokenizer = data::load_tokenizer(path);
  const MappedFile file(options.text);
  const auto documents = documents_of(file.text(), options.document_bytes);
  Result ours, theirs;
  std::unique_ptr<Peer> peer;
  if (!options.python.empty()) peer = std::make_unique<Peer>(options, path);
  for (int round = 0; round <= options.rounds; ++round) {
    if (round == 1) ours.seconds.clear(), theirs.seconds.clear();  // the first is for warming up
    run_ours(*tokenizer, documents, ours);
    if (peer) peer->run(theirs);
  }
  if (peer && (ours.tokens != theirs.tokens || ours.checksum != theirs.checksum))
    throw std::runtime_error(
        fmt::format("{}: the tokens differ: {} of ours, {} of the peer", path, ours.tokens, theirs.tokens));
  const auto rate = [&](const Result& result, double q) {
    return static_cast<double>(file.size()) / result.quantile(q) / 1e6;
  };
  const auto cell = [&](const Result& result) {
    return fmt::format("{:.1f} ({:.1f}-{:.1f})", rate(result, 0.5), rate(result, 0.75), rate(result, 0.25));
  };
  table.add({std::filesystem::path(path).stem().string(), std::to_string(tokenizer->vocab_size()),
             fmt::format("{:.2f}", static_cast<double>(file.size()) / static_cast<double>(ours.tokens)), cell(ours),
             peer ? cell(theirs) : "-",
             peer ? fmt::format("{:.1f}x", theirs.quantile(0.5) / ours.quantile(0.5)) : "-"});
}

/// The fixtures' texts until they fill some megabytes.
void write_sample(const std::filesystem::path& path) {
  const MappedFile file(TRIREME_BENCH_DIR "/../tests/fixtures/tokenizers/texts.json");
  std::string text;
  for (const auto& part : nlohmann::json::parse(file.text())) text += part.get<std::string>() + "\n";
  std::string all;
  while (all.size() < 4'000'000) all += text;
  write_text_file(path, all);
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bench::Arguments app("Encoding text, beside the Hugging Face tokenizers library");
  app.add_option("--tokenizer", options.tokenizers, "tokenizer.json; may be given several times");
  app.add_option("--text", options.text, "UTF-8 text");
  app.add_option("--python", options.python, "a Python with tokenizers, for the peer; without: ours only");
  app.add_option("--document-bytes", options.document_bytes, "how long documents are").show_default();
  app.add_option("--rounds", options.rounds, "turns of each side").show_default();
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (options.tokenizers.empty()) {
    for (const char* name : {"gpt2", "llama3", "qwen", "llama2", "mistral"})
      options.tokenizers.push_back(fmt::format("{}/../tests/fixtures/tokenizers/{}.json", TRIREME_BENCH_DIR, name));
  }
  const auto sample = std::filesystem::temp_directory_path() / fmt::format("trireme_tokenize_{}.txt", getpid());
  if (options.text.empty()) {
    write_sample(sample);
    options.text = sample.string();
  }
  TextTable table(
      {{"tokenizer"}, {"tokens"}, {"bytes/token"}, {"ours MB/s (quartiles)"}, {"Hugging Face MB/s"}, {"ours is"}});
  for (const std::string& tokenizer : options.tokenizers) compare(options, tokenizer, table);
  std::filesystem::remove(sample);
  fmt::print("{} documents' bytes, one thread each, in turns, processor time\n{}", options.document_bytes,
             table.text());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
