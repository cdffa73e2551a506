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
#include "trireme/base/text.h"
#include "trireme/data/shard_writer.h"
#include "trireme/data/token_file.h"
#include "trireme/formats/json_text.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kCountingChunk = 8 << 20;

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

std::uint64_t chunk_bytes(const Chunk& chunk) {
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
  plan["chat"] = options.chat ? std::string(name_in(enum_names(std::type_identity<ChatFormat>()), *options.chat)) : "";
  for (std::size_t file = 0; file < corpus.files().size(); ++file) {
    const fs::path& path = corpus.files()[file];
    plan["files"].push_back({{"path", fs::absolute(path).lexically_normal().string()},
                             {"bytes", corpus.file_bytes(file)},
                             {"changed", fs::last_write_time(path).time_since_epoch().count()}});
  }
  return plan;
}

/// The file that says what the shards of a folder are made of.
class PlanFile {
 public:
  PlanFile(Json plan, const fs::path& out) : plan_(std::move(plan)), path_(out / kPlanName) {
    new_folder_ = fs::create_directories(out);
    if (fs::exists(path_)) {
      compare();
    } else {
      refuse_foreign_shards();
      new_plan_ = true;
    }
    write(/*failed=*/false);
  }

  /// After an error. Shards that are whole are there for a second try; without any, nothing is left.
  void fail() {
    if (!shards().empty()) return write(/*failed=*/true);
    if (new_plan_) fs::remove(path_);
    if (new_folder_) fs::remove(path_.parent_path());
  }

 private:
  std::vector<fs::path> shards() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path_.parent_path()))
      if (entry.path().extension() == ".shard") found.push_back(entry.path());
    return found;
  }
  void refuse_foreign_shards() const {
    if (shards().empty()) return;
    throw ConfigError(
        fmt::format("{} holds shards already, but no {} that says of what", path_.parent_path().string(), kPlanName),
        "name another folder");
  }
  /// The plan that is there must be this one, unless it failed.
  void compare() {
    const std::string folder = path_.parent_path().string();
    const Json before = formats::parse_json(read_text_file(path_, kMostPlanBytes), path_.string());
    for (const auto& [key, value] : plan_.items()) {
      if (before.is_object() && before.contains(key) && before[key] == value) continue;
      if (before.is_object() && before.value("failed", false)) {
        log_warn("{} holds shards of a call that failed, made otherwise: they are replaced", folder);
        for (const fs::path& shard : shards()) fs::remove(shard);
        return;
      }
      throw ConfigError(fmt::format("{} holds shards that were made otherwise: {} differs", folder,
                                    key == "files" ? "the list of files, or when one was changed," : key),
                        "name another folder, or remove this one to begin anew");
    }
  }
  void write(bool failed) const {
    Json plan = plan_;
    if (failed) plan["failed"] = true;
    write_text_file(path_, formats::python_json(plan, formats::Keys::kAsTheyAre) + "\n");
  }

  Json plan_;
  fs::path path_;
  bool new_folder_ = false, new_plan_ = false;
};

fs::path shard_path(const fs::path& out, std::size_t number) { return out / fmt::format("{:05}.shard", number); }

ShardInfo info_of(const Tokenizer& tokenizer) {
  ShardInfo info{
      .vocab_size = tokenizer.vocab_size(), .tokenizer_hash = tokenizer.hash(), .tokenizer = tokenizer.source()};
  info.special.bos = tokenizer.roles().bos.value_or(-1);
  info.special.eos = tokenizer.roles().eos.value_or(-1);
  info.special.pad = tokenizer.roles().pad.value_or(-1);
  info.special.mask = tokenizer.roles().mask.value_or(-1);
  info.special.cls = tokenizer.roles().cls.value_or(-1);
  info.special.sep = tokenizer.roles().sep.value_or(-1);
  return info;
}

}  // namespace

namespace {

/// Turns chunks into shards; one for all threads.
class ShardMaker {
 public:
  ShardMaker(const Corpus& corpus, const Tokenizer& tokenizer, const TokenizeOptions& options)
      : corpus_(corpus), tokenizer_(tokenizer), options_(options) {
    if (options.chat) chat_.emplace(*options.chat, tokenizer);
    if (options.end_documents) end_ = tokenizer.roles().eos;
  }

  /// Into `result`, under a lock.
  void make(const Chunk& chunk, const fs::path& path, const Workers& workers, TokenizeResult& result) {
    if (fs::exists(path)) return keep(path, result);
    ShardWriter writer(path, info_of(tokenizer_));
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> learnt;
    std::uint64_t text_bytes = 0, targets = 0;
    const auto stop = [&] {
      if (workers.stopped()) throw Stopped();
    };
    if (chat_) {
      corpus_.read_chats(chunk, [&](const Conversation& conversation) {
        stop();
        ids.clear();
        learnt.clear();
        chat_->encode(conversation, end_, ids, learnt);
        writer.add_document(ids, learnt);
        for (const ChatMessage& message : conversation) text_bytes += message.content.size();
        targets += static_cast<std::uint64_t>(std::ranges::count(learnt, 1));
      });
    } else {
      corpus_.read(chunk, [&](std::string_view document) {
        stop();
        ids.clear();
        tokenizer_.encode(document, {.add_special = options_.add_special}, ids);
        if (end_ && (ids.empty() || ids.back() != *end_)) ids.push_back(*end_);
        writer.add_document(ids);
        text_bytes += document.size();
        targets += ids.size();
      });
    }
    writer.finish();
    const std::scoped_lock lock(mutex_);
    result.documents += writer.documents();
    result.tokens += writer.tokens();
    result.made_tokens += writer.tokens();
    result.learnt += targets;
    result.text_bytes += text_bytes;
  }

 private:
  void keep(const fs::path& path, TokenizeResult& result) {
    const TokenFile there(path);  // checks that it is whole
    if (there.info().tokenizer_hash != tokenizer_.hash())
      throw ConfigError(fmt::format("{} was made with another tokenizer", path.string()), "name another folder");
    const std::scoped_lock lock(mutex_);
    ++result.kept;
    result.documents += static_cast<std::uint64_t>(there.documents());
    result.tokens += static_cast<std::uint64_t>(there.tokens());
  }

  const Corpus& corpus_;
  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::optional<ChatEncoder> chat_;
  std::optional<std::int32_t> end_;
  std::mutex mutex_;
};

[[noreturn]] void refuse_empty(const Corpus& corpus) {
  throw ConfigError(fmt::format("there is no document in {}: {} of {} bytes without text",
                                corpus.files().size() == 1 ? corpus.files()[0].string() : "the files",
                                counted(corpus.files().size(), "file"), corpus.bytes()),
                    "name files that hold text; of a .jsonl, --field names what holds it");
}

}  // namespace

TokenizeResult tokenize_corpus(const Corpus& corpus, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  const std::vector<Chunk> chunks = corpus.chunks(options.chunk_bytes);
  if (chunks.empty()) refuse_empty(corpus);
  ShardMaker maker(corpus, tokenizer, options);
  PlanFile plan(plan_of(corpus, tokenizer, options), options.out);
  if (options.end_documents && !tokenizer.roles().eos)
    log_warn("{} names no token that ends a text: documents are not told apart by a token", tokenizer.source());

  TokenizeResult result;
  for (std::size_t i = 0; i < chunks.size(); ++i) result.shards.push_back(shard_path(options.out, i));
  Workers workers(chunks.size(), options.threads);
  try {
    SharedProgress progress("tokenize", corpus.bytes(), options.progress);
    workers.run([&](std::size_t number) {
      maker.make(chunks[number], result.shards[number], workers, result);
      progress.add(chunk_bytes(chunks[number]));
    });
    if (result.documents == 0) {
      for (const fs::path& shard : result.shards) fs::remove(shard);
      refuse_empty(corpus);
    }
  } catch (...) {
    plan.fail();
    throw;
  }
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
    progress.add(chunk_bytes(chunks[number]));
  });
  return all.take();
}

}  // namespace trireme::data
