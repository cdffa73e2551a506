#include "trireme/serve/draft_model.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"

namespace trireme::serve {
namespace {

at::Tensor numbers_to_tensor(const std::vector<std::int64_t>& numbers) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::ranges::copy(numbers, out.mutable_data_ptr<std::int64_t>());
  return out;
}

std::vector<nn::KvCacheGroup> draft_groups(const spec::ModelShape& shape, const DraftModelOptions& options) {
  auto groups = nn::kv_cache_groups(shape, {.max_tokens = options.kv_tokens,
                                            .max_query_len = options.chunk,
                                            .sequences = std::max<std::int64_t>(1, options.max_sequences)});
  for (nn::KvCacheGroup& group : groups)
    group.num_blocks = std::min(group.num_blocks, nn::blocks_for(options.kv_tokens));
  return groups;
}

class DraftModel final : public Drafter {
 public:
  DraftModel(models::Model& model, DraftModelOptions options)
      : model_(model),
        options_(options),
        device_(model.params.begin()->value.device()),
        cache_{.groups = draft_groups(model.shape, options)},
        blocks_(cache_.groups) {}

  std::size_t depth() const override { return options_.depth; }

  void ended(RequestId id) override {
    const auto found = known_.find(id);
    if (found == known_.end()) return;
    blocks_.release(found->second.tables);
    known_.erase(found);
  }

  std::vector<Drafts> draft(std::span<const DraftRequest> requests) override {
    std::vector<Drafts> out(requests.size());
    std::vector<Going> going;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const DraftRequest& request = requests[i];
      const auto length = static_cast<std::int64_t>(request.tokens.size());
      const std::int64_t room = model_.shape.max_seq_len - length;
      const auto most = std::min({static_cast<std::int64_t>(std::min(request.most, options_.depth)), room});
      if (most <= 0 || length == 0) continue;
      Known& known = known_.try_emplace(request.id, Known{blocks_.new_tables(), {}}).first->second;
      const auto differs = std::ranges::mismatch(known.cached, request.tokens);
      // The last token is read again, if need be: its logits are wanted.
      const auto same = std::min<std::int64_t>(differs.in1 - known.cached.begin(), length - 1);
      known.cached.resize(static_cast<std::size_t>(same));
      going.push_back({.request = &request,
                       .known = &known,
                       .drafts = &out[i],
                       .pending = {request.tokens.begin() + same, request.tokens.end()},
                       .most = static_cast<std::size_t>(most)});
    }
    while (take_step(going, requests)) {
    }
    return out;
  }

 private:
  struct Known {
    nn::BlockManager::Tables tables;
    std::vector<std::int64_t> cached;  // tokens whose keys are in the cache
  };
  struct Going {
    const DraftRequest* request = nullptr;
    Known* known = nullptr;
    Drafts* drafts = nullptr;
    std::vector<std::int64_t> pending = {};  // tokens that are still to be read
    std::size_t most = 0;
  };

  bool reserve(Known& known, std::int64_t tokens, std::span<const DraftRequest> asked) {
    if (blocks_.reserve(known.tables, tokens)) return true;
    for (auto at = known_.begin(); at != known_.end();) {
      const bool wanted = std::ranges::find(asked, at->first, &DraftRequest::id) != asked.end();
      if (!wanted) blocks_.release(at->second.tables);
      at = wanted ? std::next(at) : known_.erase(at);
    }
    return blocks_.reserve(known.tables, tokens);
  }

  /// Reads some of what is pending and drafts a token for each sequence that has been read whole. False: all is done.
  bool take_step(std::vector<Going>& going, std::span<const DraftRequest> asked) {
    std::vector<nn::SequenceStep> steps;
    std::vector<Going*> taken;
    std::vector<std::int64_t> ids;
    std::int64_t longest = 0;
    for (Going& one : going) {
      const std::int64_t left = options_.chunk - static_cast<std::int64_t>(ids.size());
      const auto count = std::min<std::int64_t>(left, static_cast<std::int64_t>(one.pending.size()));
      if (count <= 0) continue;
      const auto context = static_cast<std::int64_t>(one.known->cached.size());
      // Never more is taken back than the last token and what was drafted behind it.
      const auto stays = static_cast<std::int64_t>(one.request->tokens.size()) - 1;
      blocks_.free_out_of_window(one.known->tables, std::min(context, stays));
      if (!reserve(*one.known, context + count, asked)) {
        one.pending.clear();
        continue;
      }
      const auto end = one.pending.begin() + count;
      ids.insert(ids.end(), one.pending.begin(), end);
      one.known->cached.insert(one.known->cached.end(), one.pending.begin(), end);
      one.pending.erase(one.pending.begin(), end);
      steps.push_back({context, count, one.known->tables});
      taken.push_back(&one);
      longest = std::max(longest, context + count);
    }
    if (steps.empty()) return false;
    nn::KvBatch batch = nn::make_kv_batch(cache_, steps, device_);
    batch.quantised = options_.quantised;
    nn::Context context;
    context.kv_batch = &batch;
    context.sequence = nn::packed_sequence(batch);
    if (device_.is_cuda()) context.sequence.position_count = nn::blocks_for(longest) * nn::kKvBlockSize;
    const at::Tensor logits =
        model_.next_logits(numbers_to_tensor(ids).to(device_).unsqueeze(0), context).to(at::kFloat).cpu().contiguous();
    const auto classes = static_cast<std::size_t>(logits.size(1));
    for (std::size_t i = 0; i < taken.size(); ++i) {
      Going& one = *taken[i];
      if (!one.pending.empty()) continue;
      const std::size_t before = one.drafts->tokens.size();
      append_draft({logits.const_data_ptr<float>() + i * classes, classes}, *one.request, options_.rule, *one.drafts);
      const std::size_t now = one.drafts->tokens.size();
      if (now > before && now < one.most) one.pending = {one.drafts->tokens.back()};
    }
    return true;
  }

  models::Model& model_;
  DraftModelOptions options_;
  at::Device device_;
  nn::KvCache cache_;
  nn::BlockManager blocks_;
  std::map<RequestId, Known> known_;
};

}  // namespace

std::unique_ptr<Drafter> draft_model(models::Model& model, const spec::ModelShape& target, DraftModelOptions options) {
  if (model.shape.vocab_size != target.vocab_size) {
    throw ConfigError(fmt::format("the draft model has {} tokens and the model {}: a guess would be another word",
                                  model.shape.vocab_size, target.vocab_size),
                      "name a draft model of the same tokenizer");
  }
  return std::make_unique<DraftModel>(model, options);
}

}  // namespace trireme::serve
