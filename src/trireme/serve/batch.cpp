#include "trireme/serve/batch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/progress.h"
#include "trireme/http/message.h"
#include "trireme/serve/api/fields.h"
#include "trireme/serve/api/request.h"
#include "trireme/serve/api/text_stream.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/model_text.h"
#include "trireme/serve/rank_model.h"
#include "trireme/serve/stream_batch.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

/// One line on its way.
struct BatchLine {
  std::int64_t index = 0;
  nlohmann::ordered_json id = nullptr;
  std::vector<std::int64_t> prompt = {};
  std::vector<std::int64_t> tokens = {};
  std::string text = {};
  std::unique_ptr<api::TextStream> stream = nullptr;
};

/// Lines at the end of a file that other ranks append lines to as well: each is one write.
class LineFile {
 public:
  ~LineFile() {
    if (file_ >= 0) ::close(file_);
  }
  LineFile() = default;
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void open(const fs::path& path) {
    path_ = path;
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0) throw IoError(fmt::format("{} cannot be written", path.string()));
  }
  void write(const std::string& line) {
    if (file_ < 0) return;
    const ::ssize_t written = ::write(file_, line.data(), line.size());
    if (written != static_cast<::ssize_t>(line.size()))
      throw IoError(fmt::format("{} cannot be written", path_.string()));
  }

 private:
  fs::path path_;
  int file_ = -1;
};

class BatchRun {
 public:
  BatchRun(const BatchRequest& request, comm::Group& world)
      : request_(request),
        world_(world),
        opened_(open_rank_model(request.model, world)),
        text_(find_model_text(request.model.model,
                              request.tokenizer.empty() ? opened_->tokenizer().value_or("") : request.tokenizer, {})),
        input_(request.input) {
    if (!input_) throw IoError(fmt::format("{} cannot be read", request.input.string()));
    check_sampling(request.sampling);
    limits_ = {.model = "batch", .vocab_size = model().shape.vocab_size, .max_len = model().shape.max_seq_len};
    if (request.beyond_context && model().shape.position_kind != spec::PositionKind::kLearned) {
      limits_.max_len = INT32_MAX;
    }
    const std::int64_t longest = std::max<std::int64_t>(1, longest_line());
    if (!opened_->about.empty() && world.rank() == 0) log_info("{}", opened_->about);
    std::string about;
    batch_ = batch_of(request.batch, *opened_, total_lines_, longest, about);
    if (!about.empty()) log_info("{}", about);
    const std::int64_t chunk = request.model.device == spec::DeviceKind::kCuda ? kGpuPrefillChunk : kPrefillChunk;
    EngineOptions options{.max_batch_tokens = std::max<std::int64_t>(chunk, batch_),
                          .max_sequences = batch_,
                          .prefill_chunk = chunk,
                          .kv_tokens = longest * batch_,
                          .invariant = request.invariant,
                          .cuda_graphs = request.cuda_graphs,
                          .speculation = rule_of(request.speculation)};
    opened_->set_up(options);
    engine_ = std::make_unique<InferenceEngine>(model(), options);
    drafter_ = make_drafter(request.speculation, request.model, *opened_, *engine_);
    if (drafter_.drafter) engine_->set_drafter(std::move(drafter_.drafter));
  }

  BatchResult run() {
    const std::set<std::int64_t> finished =
        exists(request_.output) ? finished_lines(request_.output) : std::set<std::int64_t>();
    // Nobody looks at the file again before all have; of each replica one rank writes.
    world_.barrier().wait();
    if (opened_->leads_replica()) output_.open(request_.output);
    std::unique_ptr<Progress> progress;
    if (world_.rank() == 0) progress = std::make_unique<Progress>("generate", total_lines_, "line");
    input_.clear();
    input_.seekg(0);
    std::string line;
    std::int64_t index = 0;
    bool more = true;
    const bool together = engine_->options().lockstep != nullptr;
    while (true) {
      // As many wait as run: the file may be larger than memory.
      while (more && in_flight_ < 2 * batch_) {
        more = static_cast<bool>(std::getline(input_, line));
        if (!more) break;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        ++result_.lines;
        if (finished.contains(index)) {
          ++result_.skipped;
        } else if (index % opened_->replicas() == opened_->replica()) {
          begin(line, index);
        }
        ++index;
      }
      // An engine that is idle now has no more lines.
      if (together ? !engine_->step_together() : engine_->idle()) break;
      if (!together) engine_->step();
      if (progress) {
        progress->update(result_.lines - in_flight_, fmt::format("{} new tokens", result_.new_tokens));
      }
    }
    result_.steps = engine_->scheduler().totals().steps;
    result_.cached_tokens = engine_->scheduler().totals().cached_tokens;
    add_up();
    return result_;
  }

 private:
  /// Over replicas; the steps of the busiest.
  void add_up() {
    const bool counts = opened_->leads_replica();
    std::vector<std::int64_t> sums;
    for (const std::int64_t one : {result_.failed, result_.prompt_tokens, result_.cached_tokens, result_.new_tokens}) {
      sums.push_back(counts ? one : 0);
    }
    world_.all_reduce({sums.data(), sums.size(), comm::DType::kI64}, comm::Reduce::kSum).wait();
    result_.failed = sums[0], result_.prompt_tokens = sums[1], result_.cached_tokens = sums[2];
    result_.new_tokens = sums[3];
    world_.all_reduce({&result_.steps, 1, comm::DType::kI64}, comm::Reduce::kMax).wait();
  }

  models::Model& model() { return opened_->model(); }
  static bool exists(const fs::path& path) { return fs::exists(path) && fs::file_size(path) > 0; }

  /// Tokens of the longest request, prompts by a bound: a token has at least a byte, but for what templates add.
  std::int64_t longest_line() {
    std::int64_t longest = 0;
    for (std::string line; std::getline(input_, line);) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      ++total_lines_;
      longest = std::max(longest, static_cast<std::int64_t>(line.size()));
    }
    return std::min({limits_.max_len, longest + 1024 + request_.tokens, std::int64_t{1} << 20});
  }

  struct Asked {
    api::ApiRequest request;
    nlohmann::ordered_json id = nullptr;
  };
  Asked parse(const std::string& line) const {
    nlohmann::json body;
    try {
      body = nlohmann::json::parse(line);
    } catch (const nlohmann::json::parse_error& error) {
      throw http::HttpError(400, fmt::format("the line is no valid JSON: wrong at byte {}", error.byte));
    } catch (const nlohmann::json::out_of_range&) {
      throw http::HttpError(400, "the line has a number that is too large for 64 bits");
    }
    if (!body.is_object()) throw http::HttpError(400, "the line must be a JSON object");
    Asked out;
    if (body.contains("id")) {
      out.id = body["id"];
      body.erase("id");
    }
    for (const char* name : {"stream", "stream_options", "n", "logprobs", "top_logprobs", "echo", "best_of", "model"}) {
      if (body.contains(name))
        api::refuse_field(name, fmt::format("{} is not for a batch", name), "unsupported_parameter");
    }
    // What the command says holds where the line is silent.
    const SamplingParams& sampling = request_.sampling;
    const auto otherwise = [&](const char* name, const nlohmann::json& value) {
      if (!body.contains(name)) body[name] = value;
    };
    otherwise("temperature", sampling.temperature);
    otherwise("top_k", sampling.top_k);
    otherwise("top_p", sampling.top_p);
    otherwise("min_p", sampling.min_p);
    otherwise("repetition_penalty", sampling.repetition_penalty);
    otherwise("seed", static_cast<std::int64_t>(sampling.seed));
    const bool chat = body.contains("messages");
    if (!body.contains("max_tokens") && !(chat && body.contains("max_completion_tokens"))) {
      body["max_tokens"] = request_.tokens;
    }
    out.request = chat ? api::parse_chat(body, limits_) : api::parse_completion(body, limits_);
    if (!chat && out.request.prompts.size() != 1) api::refuse_field("prompt", "a line has one prompt");
    return out;
  }

  void begin(const std::string& line, std::int64_t index) {
    auto one = std::make_shared<BatchLine>();  // shared with the engine's callback
    one->index = index;
    try {
      Asked asked = parse(line);
      one->id = asked.id;
      const api::ApiRequest& request = asked.request;
      one->prompt = request.chat ? encode_messages(text_, request.messages, limits_)
                                 : encode_prompt(text_, request.prompts[0], limits_);
      const auto length = static_cast<std::int64_t>(one->prompt.size()),
                 wanted = request.max_tokens.value_or(request_.tokens);
      check_length(length, wanted, model().shape, request_.beyond_context);
      if (wanted < 1) api::refuse_field("max_tokens", "max_tokens must be at least 1");
      one->stream = std::make_unique<api::TextStream>(text_.tokenizer.get(), request.stop, one->prompt);
      EngineRequest engine{.id = static_cast<RequestId>(index),
                           .prompt = one->prompt,
                           .max_new_tokens = wanted,
                           .sampling = request.sampling,
                           .choice = static_cast<std::uint64_t>(index),
                           .stop_tokens = request.stop_token_ids};
      engine.sampling.seed = request.seed.value_or(0);
      if (!request.ignore_eos) {
        engine.stop_tokens.insert(engine.stop_tokens.end(), text_.end_tokens.begin(), text_.end_tokens.end());
      }
      engine.on_token = [this, one](const GeneratedToken& token) { take(*one, token); };
      if (const auto why = engine_->add(std::move(engine))) throw http::HttpError(400, *why);
      ++in_flight_;
      result_.prompt_tokens += length;
    } catch (const Error& error) {
      ++result_.failed;
      write({{"index", index}, {"id", one->id}, {"error", error.message()}});
    }
  }

  void take(BatchLine& line, const GeneratedToken& token) {
    if (token.finish == FinishReason::kError) return end(line, "error");
    ++result_.new_tokens;
    if (token.finish == FinishReason::kStop) return end(line, "stop");
    line.tokens.push_back(token.token);
    line.text += line.stream->push(token.token);
    if (line.stream->stopped()) {
      if (!token.finish) engine_->cancel(token.id);
      return end(line, "stop");
    }
    if (token.finish) end(line, "length");
  }

  void end(BatchLine& line, const char* why) {
    line.text += line.stream->finish();
    --in_flight_;
    nlohmann::ordered_json out{{"index", line.index}, {"id", line.id}};
    if (text_.tokenizer) out["text"] = line.text;
    out["tokens"] = line.tokens;
    out["finish_reason"] = line.stream->stopped() ? "stop" : why;
    out["prompt_tokens"] = line.prompt.size();
    write(out);
  }

  void write(const nlohmann::ordered_json& line) {
    output_.write(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  const BatchRequest& request_;
  comm::Group& world_;
  std::unique_ptr<RankModel> opened_;
  ModelText text_;
  std::ifstream input_;
  LineFile output_;
  api::ModelLimits limits_;
  std::int64_t batch_ = 1, total_lines_ = 0, in_flight_ = 0;
  BatchResult result_;
  RankDrafter drafter_;
  std::unique_ptr<InferenceEngine> engine_;  // the last: its callbacks use the others
};

}  // namespace

std::set<std::int64_t> finished_lines(const fs::path& output) {
  std::ifstream file(output, std::ios::binary);
  std::set<std::int64_t> finished;
  std::uintmax_t whole = 0;
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (file.eof()) break;  // without its line break: torn
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("index") || !json["index"].is_number_integer()) {
      throw ConfigError(fmt::format("line {} of {} is no line of a batch's output", number, output.string()),
                        "name another file, or remove it");
    }
    finished.insert(json["index"].get<std::int64_t>());
    whole += line.size() + 1;
  }
  file.close();
  if (whole < fs::file_size(output)) fs::resize_file(output, whole);
  return finished;
}

BatchResult generate_batch(const BatchRequest& request, comm::Group& world) {
  if (request.batch < 0) throw ConfigError("a batch of no sequences", "say --batch-size 1 or more");
  return BatchRun(request, world).run();
}

}  // namespace trireme::serve
