#include "trireme/data/corpus/tokenize_corpus.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/data/shard_writer.h"
#include "trireme/data/token_file.h"
#include "trireme/formats/json_text.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kCountingChunk = 8 << 20;
constexpr std::uint64_t kMostPlanBytes = 1 << 30;

/// Another chunk failed; nobody is told of this one.
struct Stopped {};

/// Hands out chunks to threads until they are done or one fails; then throws what went wrong first in the corpus.
class Workers {
 public:
  Workers(std::size_t chunks, int threads) : chunks_(chunks), threads_(std::max(threads, 1)) {}

  bool stopped() const { return failed_; }

  /// `work` is called with a chunk's number.
  template <typename Work>
  void run(Work&& work) {
    const auto loop = [&] {
      for (std::size_t chunk; !failed_ && (chunk = next_++) < chunks_;) {
        try {
          work(chunk);
        } catch (const Stopped&) {
        } catch (...) {
          const std::scoped_lock lock(mutex_);
          errors_.emplace(chunk, std::current_exception());
          failed_ = true;
        }
      }
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < std::min<std::size_t>(static_cast<std::size_t>(threads_), chunks_); ++i)
      others.emplace_back(loop);
    loop();
    for (std::thread& thread : others) thread.join();
    if (!errors_.empty()) std::rethrow_exception(errors_.begin()->second);
  }

 private:
  std::size_t chunks_;
  int threads_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::map<std::size_t, std::exception_ptr> errors_;
};

/// Progress that several threads tell of.
class SharedProgress {
 public:
  SharedProgress(std::string what, std::uint64_t total, const Progress::Output& output)
      : progress_(std::move(what), static_cast<std::int64_t>(total), "byte", output) {
    progress_.update(0);  // the first chunk takes time too
  }
  void add(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    done_ += bytes;
    progress_.update(static_cast<std::int64_t>(done_));
  }

 private:
  std::mutex mutex_;
  std::uint64_t done_ = 0;
  Progress progress_;
};

std::uint64_t bytes_of(const Chunk& chunk) {
  std::uint64_t bytes = 0;
  for (const TextRange& stretch : chunk) bytes += stretch.end - stretch.begin;
  return bytes;
}

/// Everything that decides what is in the shards.
Json plan_of(const Corpus& corpus, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  Json plan;
  plan["tokenizer"] = fmt::format("{:016x}", tokenizer.hash());
  plan["field"] = corpus.options().field;
  plan["split"] = name_in(enum_names(std::type_identity<DocumentSplit>()), corpus.options().split);
  plan["separator"] = corpus.options().separator;
  plan["chunk_bytes"] = options.chunk_bytes;
  plan["add_special"] = options.add_special;
  plan["end_documents"] = options.end_documents;
  for (std::size_t file = 0; file < corpus.files().size(); ++file) {
    const fs::path& path = corpus.files()[file];
    plan["files"].push_back({{"path", fs::absolute(path).lexically_normal().string()},
                             {"bytes", corpus.file_bytes(file)},
                             {"changed", fs::last_write_time(path).time_since_epoch().count()}});
  }
  return plan;
}

/// Writes the plan, or finds that it is the one that is there.
void settle_plan(const Json& plan, const fs::path& out) {
  const fs::path path = out / kPlanName;
  if (!fs::exists(path)) {
    for (const auto& entry : fs::directory_iterator(out)) {
      if (entry.path().extension() == ".shard")
        throw ConfigError(fmt::format("{} holds shards already, but no {} that says of what", out.string(), kPlanName),
                          "name another folder");
    }
    return write_text_file(path, formats::python_json(plan, formats::Keys::kAsTheyAre) + "\n");
  }
  const Json before = formats::parse_json(read_text_file(path, kMostPlanBytes), path.string());
  for (const auto& [key, value] : plan.items()) {
    if (before.is_object() && before.contains(key) && before[key] == value) continue;
    throw ConfigError(fmt::format("{} holds shards that were made otherwise: {} differs", out.string(),
                                  key == "files" ? "the list of files, or when one was changed," : key),
                      "name another folder, or remove this one to begin anew");
  }
}

fs::path shard_path(const fs::path& out, std::size_t number) { return out / fmt::format("{:05}.shard", number); }

ShardInfo info_of(const Tokenizer& tokenizer) {
  ShardInfo info{
      .vocab_size = tokenizer.vocabulary_size(), .tokenizer_hash = tokenizer.hash(), .tokenizer = tokenizer.source()};
  info.special.bos = tokenizer.roles().bos.value_or(-1);
  info.special.eos = tokenizer.roles().eos.value_or(-1);
  return info;
}

}  // namespace

TokenizeResult tokenize_corpus(const Corpus& corpus, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  fs::create_directories(options.out);
  const std::vector<Chunk> chunks = corpus.chunks(options.chunk_bytes);
  settle_plan(plan_of(corpus, tokenizer, options), options.out);
  const auto end = options.end_documents ? tokenizer.roles().eos : std::nullopt;
  if (options.end_documents && !end)
    log_warn("{} names no token that ends a text: documents are not told apart by a token", tokenizer.source());

  TokenizeResult result;
  for (std::size_t i = 0; i < chunks.size(); ++i) result.shards.push_back(shard_path(options.out, i));
  Workers workers(chunks.size(), options.threads);
  SharedProgress progress("tokenize", corpus.bytes(), options.progress);
  std::mutex mutex;
  workers.run([&](std::size_t number) {
    const fs::path& path = result.shards[number];
    if (fs::exists(path)) {
      const TokenFile there(path);  // checks that it is whole
      if (there.info().tokenizer_hash != tokenizer.hash())
        throw ConfigError(fmt::format("{} was made with another tokenizer", path.string()), "name another folder");
      const std::scoped_lock lock(mutex);
      ++result.kept;
      result.documents += static_cast<std::uint64_t>(there.documents());
      result.tokens += static_cast<std::uint64_t>(there.tokens());
    } else {
      ShardWriter writer(path, info_of(tokenizer));
      std::vector<std::int32_t> ids;
      corpus.read(chunks[number], [&](std::string_view document) {
        if (workers.stopped()) throw Stopped();
        ids.clear();
        tokenizer.encode(document, {.add_special = options.add_special}, ids);
        if (end && (ids.empty() || ids.back() != *end)) ids.push_back(*end);
        writer.add_document(ids);
      });
      writer.finish();
      const std::scoped_lock lock(mutex);
      result.documents += writer.documents();
      result.tokens += writer.tokens();
    }
    progress.add(bytes_of(chunks[number]));
  });
  return result;
}

WordCounts count_words(const Corpus& corpus, KnownPattern pattern, int threads, const Progress::Output& output) {
  const std::vector<Chunk> chunks = corpus.chunks(kCountingChunk);
  Workers workers(chunks.size(), threads);
  SharedProgress progress("count", corpus.bytes(), output);
  std::mutex mutex;
  WordCounter all(pattern);
  workers.run([&](std::size_t number) {
    WordCounter counter(pattern);
    corpus.read(chunks[number], [&](std::string_view document) { counter.add(document); });
    const std::scoped_lock lock(mutex);
    all.add(counter.take());
    progress.add(bytes_of(chunks[number]));
  });
  return all.take();
}

}  // namespace trireme::data
