// What a model answers: likelihoods of given answers, and what it writes by itself.
#include <ATen/Parallel.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/observe/run_reader.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/run/model_on_ranks.h"
#include "trireme/train/tasks/commands.h"

namespace trireme::train {
namespace {

/// A prompt with something behind it; the tokens from `begin` on are what counts.
struct TaskRow {
  std::size_t question = 0, choice = 0;  ///< choice 0: the answer
  std::vector<std::int32_t> tokens;
  std::size_t begin = 0;
};

/// As many rows as keep all their logits below this.
constexpr std::int64_t kMostLogitBytes = std::int64_t{512} << 20;

/// The split follows lm-evaluation-harness: what the whole has more tokens than the prompt alone is the answer.
TaskRow task_row(const data::Tokenizer& tokenizer, const std::string& prompt, const std::string& answer,
                 std::size_t question) {
  TaskRow row{.question = question, .tokens = tokenizer.encode(prompt + answer)};
  row.begin = tokenizer.encode(prompt).size();
  const data::TokenRoles& roles = tokenizer.roles();
  if (row.begin == 0) {  // something must be read before the first token
    const auto first = roles.bos ? roles.bos : roles.eos;
    if (!first && !tokenizer.is_bytes())
      throw ConfigError(
          fmt::format("question {} has no prompt, and the tokenizer no token that begins a text", question));
    row.tokens.insert(row.tokens.begin(), first.value_or(256));
    row.begin = 1;
  }
  if (row.tokens.size() <= row.begin)
    throw ConfigError(
        fmt::format("the answer \"{}\" of question {} has no token of its own behind its prompt", answer, question),
        "end the prompt before a blank, and begin the answer with it");
  return row;
}

class TaskAnswers {
 public:
  TaskAnswers(models::Model& model, at::Device device, std::int64_t rows)
      : model_(model), device_(device), rows_(rows) {}

  /// Per row: the log-likelihood of its tokens from `begin` on, and the likeliest token at each of them.
  struct Scored {
    double log_likelihood = 0;
    std::vector<std::int32_t> likeliest;
  };
  std::vector<Scored> score(const std::vector<const TaskRow*>& rows) {
    std::vector<Scored> all(rows.size());
    in_batches(rows, [&](std::span<const std::size_t> batch, const at::Tensor& logits) {
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const TaskRow& row = *rows[batch[i]];
        const auto begin = static_cast<std::int64_t>(row.begin),
                   count = static_cast<std::int64_t>(row.tokens.size()) - begin;
        const at::Tensor of_answer = logits.select(0, static_cast<std::int64_t>(i)).narrow(0, begin - 1, count);
        const at::Tensor likely = at::argmax(of_answer, 1).cpu();
        const at::Tensor logs = at::log_softmax(of_answer.to(at::kDouble), 1).cpu();
        Scored& scored = all[batch[i]];
        for (std::int64_t t = 0; t < count; ++t) {
          scored.log_likelihood += logs[t][row.tokens[row.begin + static_cast<std::size_t>(t)]].item<double>();
          scored.likeliest.push_back(static_cast<std::int32_t>(likely[t].item<std::int64_t>()));
        }
      }
    });
    return all;
  }

  /// Greedy decoding: each row gets tokens up to its length in `wanted`.
  void write(std::vector<TaskRow>& rows, const std::vector<std::size_t>& wanted) {
    for (;;) {
      std::vector<const TaskRow*> open;
      std::vector<std::size_t> numbers;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].tokens.size() >= wanted[i]) continue;
        open.push_back(&rows[i]);
        numbers.push_back(i);
      }
      if (open.empty()) return;
      std::vector<std::int32_t> next(open.size());
      in_batches(open, [&](std::span<const std::size_t> batch, const at::Tensor& logits) {
        for (std::size_t i = 0; i < batch.size(); ++i) {
          const auto last = static_cast<std::int64_t>(open[batch[i]]->tokens.size()) - 1;
          next[batch[i]] = static_cast<std::int32_t>(
              at::argmax(logits.select(0, static_cast<std::int64_t>(i)).select(0, last)).item<std::int64_t>());
        }
      });
      for (std::size_t i = 0; i < open.size(); ++i) rows[numbers[i]].tokens.push_back(next[i]);
    }
  }

 private:
  /// Rows of like length together, filled up on the right: what reads from left to right does not see that.
  template <typename Use>
  void in_batches(const std::vector<const TaskRow*>& rows, const Use& use) {
    std::vector<std::size_t> order(rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return rows[a]->tokens.size() > rows[b]->tokens.size(); });
    for (std::size_t first = 0; first < order.size();) {
      const auto length = static_cast<std::int64_t>(rows[order[first]]->tokens.size());
      const std::int64_t fit = std::max<std::int64_t>(1, kMostLogitBytes / (length * model_.shape.vocab_size * 4));
      const std::size_t count = std::min(order.size() - first, static_cast<std::size_t>(std::min(rows_, fit)));
      const std::span<const std::size_t> batch(order.data() + first, count);
      at::Tensor ids = at::zeros({static_cast<std::int64_t>(count), length}, at::TensorOptions(at::kLong));
      for (std::size_t i = 0; i < count; ++i) {
        auto* const to = ids.mutable_data_ptr<std::int64_t>() + static_cast<std::int64_t>(i) * length;
        std::copy(rows[batch[i]]->tokens.begin(), rows[batch[i]]->tokens.end(), to);
      }
      nn::Context context;
      context.sequence = nn::plain_sequence(ids.size(0), ids.size(1));
      nn::Tensors inputs{ids};
      if (!device_.is_cpu()) move_to(device_, inputs, context, model_.shape);
      use(batch, model_.forward(std::move(inputs), context, nullptr).to(at::kFloat));
      first += count;
    }
  }

  models::Model& model_;
  at::Device device_;
  std::int64_t rows_;
};

void check_row(const TaskRow& row, const spec::ModelShape& shape) {
  if (static_cast<std::int64_t>(row.tokens.size()) > shape.max_seq_len)
    throw ConfigError(fmt::format("question {} has {} tokens with its answer; the model's context has {}", row.question,
                                  row.tokens.size(), shape.max_seq_len),
                      "put fewer examples before it: --num-fewshot");
  for (const std::int32_t token : row.tokens) {
    if (token >= shape.vocab_size)
      throw ConfigError(fmt::format("question {} has token {}, but the model's vocab_size is {}", row.question, token,
                                    shape.vocab_size),
                        "give the tokenizer that the model was trained with: --tokenizer");
  }
}

/// Tokens that a run has seen, by its last step; none where the folder has no metrics.
std::optional<double> tokens_trained(const std::filesystem::path& model) {
  if (!std::filesystem::exists(model / "metrics.jsonl")) return std::nullopt;
  const observe::RunFiles files = observe::read_run(model.string());
  if (files.steps.empty()) return std::nullopt;
  return static_cast<double>(files.steps.back().tokens);
}

TaskReplies answer_tasks(const TaskRequest& request, comm::Rank& rank) {
  at::set_num_threads(std::max(1, usable_cores() / std::max(1, request.local_ranks)));
  comm::Group& world = rank.world();
  const spec::ModelShape shape = checkpoint::stored_shape(request.model);
  if (!shape.causal || shape.num_encoder_layers > 0)
    throw ConfigError(fmt::format("{} does not read from left to right", request.model.string()),
                      "tasks are answered by causal language models");
  const ModelOnRanks model = open_on_ranks(request.model, request.tp, request.precision, request.device, world);
  const checkpoint::OpenedModel& opened = model.opened;
  const parallel::ParallelGroups* const groups = model.groups.get();
  const auto name = request.tokenizer ? request.tokenizer : opened.tokenizer;
  if (!name)
    throw ConfigError(fmt::format("{} does not say its tokenizer", request.model.string()), "give --tokenizer");
  const auto tokenizer = data::load_tokenizer(*name);

  std::vector<TaskRow> rows;  // of all questions; this rank's are computed
  TaskReplies result;
  result.parameters = static_cast<double>(spec::count_parameters(shape).active());
  result.tokens = tokens_trained(request.model);
  result.vocab_size = shape.vocab_size;
  result.replies.resize(request.questions.size());
  for (std::size_t i = 0; i < request.questions.size(); ++i) {
    const TaskQuestion& question = request.questions[i];
    rows.push_back(task_row(*tokenizer, question.prompt, question.answer, i));
    result.replies[i].answer.assign(rows.back().tokens.begin() + static_cast<std::ptrdiff_t>(rows.back().begin),
                                    rows.back().tokens.end());
    result.replies[i].log_likelihoods.resize(1 + question.distractors.size());
    for (std::size_t k = 0; k < question.distractors.size(); ++k) {
      rows.push_back(task_row(*tokenizer, question.prompt, question.distractors[k], i));
      rows.back().choice = k + 1;
    }
  }
  for (const TaskRow& row : rows) check_row(row, shape);

  std::vector<const TaskRow*> mine;
  for (const TaskRow& row : rows) {
    if (static_cast<int>(row.question % static_cast<std::size_t>(groups->dp_size)) == groups->dp_rank)
      mine.push_back(&row);
  }
  TaskAnswers answers(*opened.model, groups->device, request.rows);
  const auto scored = answers.score(mine);
  std::vector<TaskRow> begun;  // greedy decoding of those that go wrong, from the first wrong token on
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    TaskReply& reply = result.replies[mine[i]->question];
    reply.log_likelihoods[mine[i]->choice] = scored[i].log_likelihood;
    if (mine[i]->choice != 0) continue;
    const auto& likeliest = scored[i].likeliest;
    for (std::size_t t = 0; t < likeliest.size(); ++t) reply.right_tokens += likeliest[t] == reply.answer[t] ? 1 : 0;
    const auto wrong = static_cast<std::size_t>(
        std::mismatch(likeliest.begin(), likeliest.end(), reply.answer.begin()).first - likeliest.begin());
    TaskRow row = *mine[i];
    row.tokens.resize(row.begin + wrong);
    if (wrong < likeliest.size()) row.tokens.push_back(likeliest[wrong]);
    begun.push_back(std::move(row));
    wanted.push_back(mine[i]->tokens.size());
  }
  answers.write(begun, wanted);
  for (const TaskRow& row : begun)
    result.replies[row.question].written.assign(row.tokens.begin() + static_cast<std::ptrdiff_t>(row.begin),
                                                row.tokens.end());

  // Every rank's questions to all ranks: a sum in which each number is given by one.
  std::vector<double> numbers;
  const auto each = [&](const auto& visit) {
    for (TaskReply& reply : result.replies) {
      reply.written.resize(reply.answer.size());
      for (double& one : reply.log_likelihoods) visit(one);
      for (std::int32_t& one : reply.written) visit(one);
      visit(reply.right_tokens);
    }
  };
  each([&](auto& number) { numbers.push_back(groups->counts_rows() ? static_cast<double>(number) : 0.0); });
  at::Tensor sums = at::tensor(numbers, at::TensorOptions(at::kDouble));
  world.all_reduce(device::to_buffer(sums), comm::Reduce::kSum).wait();
  const double* at = sums.const_data_ptr<double>();
  each([&](auto& number) { number = static_cast<std::remove_reference_t<decltype(number)>>(*at++); });
  return result;
}

constexpr TaskCommands kTaskCommands{.version = kTaskVersion, .answer = &answer_tasks};

}  // namespace

extern "C" const TaskCommands* trireme_tasks() {
  device::keep_host_memory();
  return &kTaskCommands;
}

}  // namespace trireme::train
