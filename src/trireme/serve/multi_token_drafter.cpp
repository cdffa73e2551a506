#include "trireme/serve/multi_token_drafter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/nn/multi_token.h"

namespace trireme::serve {
namespace {

at::Tensor rows_tensor(const std::vector<std::int64_t>& numbers, at::Device device) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::ranges::copy(numbers, out.mutable_data_ptr<std::int64_t>());
  return out.to(device);
}

nn::MultiTokenPrediction* modules_of(models::Model& model) {
  for (models::NamedLayer& entry : model.layers) {
    if (auto* found = dynamic_cast<nn::MultiTokenPrediction*>(entry.layer.get())) return found;
  }
  return nullptr;
}

class MultiTokenDrafter final : public Drafter {
 public:
  MultiTokenDrafter(nn::MultiTokenPrediction& modules, models::Model& model, nn::KvCache& cache,
                    MultiTokenOptions options)
      : modules_(modules), cache_(cache), options_(options), device_(model.params.begin()->value.device()) {}

  std::size_t depth() const override { return options_.depth; }
  bool observes() const override { return true; }
  void ended(RequestId id) override { ready_.erase(id); }

  std::vector<Drafts> draft(std::span<const DraftRequest> requests) override {
    std::vector<Drafts> out;
    for (const DraftRequest& request : requests) {
      Drafts& drafts = out.emplace_back();
      const auto found = ready_.find(request.id);
      if (found == ready_.end() || found->second.length != request.tokens.size()) continue;
      drafts = std::move(found->second.drafts);
      drafts.tokens.resize(std::min(drafts.tokens.size(), request.most));
      ready_.erase(found);
    }
    return out;
  }

  void observe(const StepSeen& seen) override {
    std::vector<nn::SequenceStep> steps;
    std::vector<std::int64_t> ids, rows, last;
    std::vector<Next> next;
    for (const StepSeen::Sequence& one : seen.sequences) {
      const auto known = static_cast<std::int64_t>(one.tokens.size());
      const std::int64_t count = std::min(one.rows, known - 1 - one.context_len);
      if (count <= 0) continue;
      for (std::int64_t row = 0; row < count; ++row) {
        rows.push_back(one.first_row + row);
        ids.push_back(one.tokens[static_cast<std::size_t>(one.context_len + row + 1)]);
      }
      steps.push_back({one.context_len, count, one.tables});
      if (!one.goes_on || one.draft.most == 0) continue;
      last.push_back(static_cast<std::int64_t>(ids.size()) - 1);
      next.push_back({.of = &one, .length = one.context_len + count});
    }
    if (steps.empty()) return;
    const at::Tensor entering = seen.hidden->index_select(0, rows_tensor(rows, device_));
    at::Tensor hidden = run(steps, ids, entering);
    if (next.empty()) return;
    hidden = hidden.index_select(0, rows_tensor(last, device_));
    for (std::size_t step = 0; step < options_.depth; ++step) {
      append(next, hidden);
      if (step + 1 == options_.depth) break;
      steps.clear(), ids.clear(), last.clear();
      std::vector<Next> still;
      for (std::size_t i = 0; i < next.size(); ++i) {
        Next& one = next[i];
        const bool room =
            std::ranges::all_of(one.of->tables, [&](const auto& table) { return one.length < table.capacity(); });
        if (!room || one.drafts.tokens.size() != step + 1 || one.drafts.tokens.size() >= one.of->draft.most) {
          keep(one);
          continue;
        }
        steps.push_back({one.length++, 1, one.of->tables});
        ids.push_back(one.drafts.tokens.back());
        last.push_back(static_cast<std::int64_t>(i));
        still.push_back(std::move(one));
      }
      next = std::move(still);
      if (next.empty()) return;
      hidden = run(steps, ids, hidden.index_select(0, rows_tensor(last, device_)));
    }
    for (Next& one : next) keep(one);
  }

 private:
  struct Next {
    const StepSeen::Sequence* of = nullptr;
    std::int64_t length = 0;  // positions that the module has read
    Drafts drafts = {};
  };
  struct Ready {
    std::size_t length = 0;  // of the text that they follow
    Drafts drafts;
  };

  void keep(Next& one) { ready_[one.of->id] = {one.of->tokens.size(), std::move(one.drafts)}; }

  /// What the module gives for each row, [rows, hidden].
  at::Tensor run(const std::vector<nn::SequenceStep>& steps, const std::vector<std::int64_t>& ids,
                 const at::Tensor& entering) {
    nn::KvBatch batch = nn::make_kv_batch(cache_, steps, device_);
    batch.invariant = options_.invariant && device_.is_cpu();
    nn::Context context;
    context.kv_batch = &batch;
    context.sequence = nn::packed_sequence(batch);
    return modules_.next_hidden(0, rows_tensor(ids, device_).unsqueeze(0), entering.unsqueeze(0), context).squeeze(0);
  }

  void append(std::vector<Next>& next, const at::Tensor& hidden) {
    nn::Context context;
    const at::Tensor logits =
        modules_.logits(0, hidden.unsqueeze(0), context).squeeze(0).to(at::kFloat).cpu().contiguous();
    const auto classes = static_cast<std::size_t>(logits.size(1));
    for (std::size_t i = 0; i < next.size(); ++i) {
      append_draft({logits.const_data_ptr<float>() + i * classes, classes}, next[i].of->draft, options_.rule,
                   next[i].drafts);
    }
  }

  nn::MultiTokenPrediction& modules_;
  nn::KvCache& cache_;
  MultiTokenOptions options_;
  at::Device device_;
  std::map<RequestId, Ready> ready_;
};

}  // namespace

std::unique_ptr<Drafter> multi_token_drafter(models::Model& model, nn::KvCache& cache, MultiTokenOptions options) {
  nn::MultiTokenPrediction* const modules = modules_of(model);
  if (modules == nullptr) {
    throw ConfigError("this model has no modules of multi-token prediction (model.mtp_depth is 0)",
                      "name a draft model, or speculate with n-grams");
  }
  return std::make_unique<MultiTokenDrafter>(*modules, model, cache, options);
}

}  // namespace trireme::serve
