#include "trireme/models/model.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/progress.h"
#include "trireme/base/text.h"
#include "trireme/models/assemble.h"
#include "trireme/nn/embedding.h"
#include "trireme/nn/head.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/nn/mlp.h"
#include "trireme/spec/rules.h"

namespace trireme::models {
namespace {

using nn::Layer;

constexpr std::string_view kEncoderBlocks = "encoder.layers";

// Layers that only change which tensors travel along: what makes an encoder and a decoder one chain.

/// The inner layer on the first tensor; the others pass by.
class OnFirst final : public Layer {
 public:
  explicit OnFirst(std::unique_ptr<nn::UnaryLayer> layer) : layer_(std::move(layer)) {}
  nn::Tensors forward(nn::Tensors inputs, nn::Context& context, nn::Tape* tape) override {
    inputs.at(0) = layer_->forward(std::move(inputs.at(0)), context, tape);
    return inputs;
  }
  nn::Tensors backward(nn::Tensors gradients, nn::Context& context, nn::Tape& tape) override {
    gradients.at(0) = layer_->backward(std::move(gradients.at(0)), context, tape);
    return gradients;
  }

 private:
  std::unique_ptr<nn::UnaryLayer> layer_;
};

/// (a, b) becomes (b, a): from the encoder, whose output is now the memory, to the decoder's tokens; a norm before it
/// where the encoder ends with one.
class Swap final : public Layer {
 public:
  explicit Swap(std::unique_ptr<nn::UnaryLayer> norm) : norm_(std::move(norm)) {}
  nn::Tensors forward(nn::Tensors inputs, nn::Context& context, nn::Tape* tape) override {
    if (norm_) inputs.at(0) = norm_->forward(std::move(inputs.at(0)), context, tape);
    std::swap(inputs.at(0), inputs.at(1));
    return inputs;
  }
  nn::Tensors backward(nn::Tensors gradients, nn::Context& context, nn::Tape& tape) override {
    std::swap(gradients.at(0), gradients.at(1));
    if (norm_) gradients.at(0) = norm_->backward(std::move(gradients.at(0)), context, tape);
    return gradients;
  }

 private:
  std::unique_ptr<nn::UnaryLayer> norm_;
};

/// The first tensor only.
class First final : public Layer {
 public:
  explicit First(std::size_t inputs) : inputs_(inputs) {}
  nn::Tensors forward(nn::Tensors inputs, nn::Context&, nn::Tape*) override {
    TRIREME_CHECK(inputs.size() == inputs_, "{} tensors came where {} were expected", inputs.size(), inputs_);
    inputs.resize(1);
    return inputs;
  }
  nn::Tensors backward(nn::Tensors gradients, nn::Context&, nn::Tape&) override {
    gradients.resize(inputs_);
    return gradients;
  }

 private:
  std::size_t inputs_;
};

/// Appends entries to a model's chain: those that are wanted, each with the parameters that it took.
class ChainBuilder {
 public:
  ChainBuilder(Model& model, const BuildOptions& options)
      : model_(model),
        assembly_(model.params, model.balance, model.shape, *options.parallel, options),
        options_(options) {}

  Assembly& assembly() { return assembly_; }

  void add(std::string name, const std::function<std::unique_ptr<Layer>()>& make) {
    if (!wants(name)) return;
    auto layer = make();
    model_.layers.push_back({std::move(name), std::move(layer), newly_used()});
  }

  void add_blocks(std::int64_t count, const std::string& prefix, BlockKind kind) {
    // Several blocks may become one segment; it is named after its first.
    std::vector<NamedLayer> entries;
    std::vector<std::unique_ptr<Layer>> blocks;
    std::vector<bool> wanted;
    std::int64_t block = 0;
    constexpr std::int64_t kMany = 512;  // no model that was published has as many
    std::unique_ptr<Progress> progress;
    if (count > kMany) progress = std::make_unique<Progress>("building the model", count, "layer");
    const nn::RecomputePlan plan = plan_blocks(count, prefix);
    for (const nn::RecomputePart& part : plan) {
      if (progress) progress->update(block);
      NamedLayer& entry = entries.emplace_back(NamedLayer{fmt::format("{}.{}", prefix, block), nullptr});
      wanted.push_back(wants(entry.name));
      // How a block is wrapped depends on its place among all of them, so one that is not wanted keeps its place.
      for (; block < part.end; ++block) {
        blocks.push_back(wanted.back() ? make_block(fmt::format("{}.{}", prefix, block), block, kind, entry) : nullptr);
      }
    }
    // With sequence parallelism each has other tokens already.
    const bool partitions = options_.partition_activations && !options_.parallel->splits_sequence();
    auto wrapped =
        nn::recomputed(std::move(blocks), plan, partitions ? options_.parallel->tensor : options_.recompute.partition);
    for (std::size_t i = 0; i < wrapped.size(); ++i) {
      if (!wanted[i]) continue;
      entries[i].layer = std::move(wrapped[i]);
      model_.layers.push_back(std::move(entries[i]));
    }
  }

  void finish() const {
    if (!options_.only) {
      TRIREME_CHECK(model_.params.elements() == spec::count_parameters(model_.shape).total(),
                    "{} parameters were built where {} were counted", model_.params.elements(),
                    spec::count_parameters(model_.shape).total());
      return;
    }
    for (const std::string& name : *options_.only) {
      if (std::ranges::find(names_, name) == names_.end()) {
        throw ConfigError(fmt::format("the model has no entry {}{}", name, did_you_mean(name, names_)));
      }
    }
  }

 private:
  nn::RecomputePlan plan_blocks(std::int64_t count, const std::string& prefix) const {
    if (!nn::plans_chains(options_.recompute.kind)) return nn::plan_of(options_.recompute, count);
    std::vector<std::int64_t> stretches;
    std::int64_t begin = 0;
    for (std::int64_t block = 1; block <= count; ++block) {
      if (block == count || begins_chunk(fmt::format("{}.{}", prefix, block)))
        stretches.push_back(block - std::exchange(begin, block));
    }
    if (options_.recompute.kind != nn::RecomputeKind::kBudget || model_.shape.num_encoder_layers == 0)
      return nn::plan_of(options_.recompute, stretches);
    return plan_stack(stretches, prefix == kEncoderBlocks);
  }

  bool begins_chunk(const std::string& entry) const {
    return std::ranges::find(options_.chunk_begins, entry) != options_.chunk_begins.end();
  }

  /// Within a budget, where an encoder stands beside a decoder: their blocks save differently and have plans of their
  /// own, which in a chunk that has blocks of both share what it may save by what they would save without.
  nn::RecomputePlan plan_stack(const std::vector<std::int64_t>& stretches, bool encoder) const {
    const nn::Recompute& all = options_.recompute;
    struct Blocks {
      std::int64_t encoders = 0, others = 0;
    };
    std::vector<Blocks> chunks(1);
    for (const std::string& entry : spec::chain_entries(model_.shape, nn::RecomputeKind::kNone)) {
      if (begins_chunk(entry)) chunks.emplace_back();
      if (entry.starts_with(kEncoderBlocks)) ++chunks.back().encoders;
      if (entry.starts_with("layers.")) ++chunks.back().others;
    }
    std::erase_if(chunks, [&](const Blocks& chunk) { return (encoder ? chunk.encoders : chunk.others) == 0; });
    TRIREME_CHECK(chunks.size() == stretches.size(), "{} stretches of blocks in {} chunks", stretches.size(),
                  chunks.size());
    std::vector<nn::RecomputePlan> plans;
    for (const Blocks& chunk : chunks) {
      nn::Recompute own = all;
      own.block = encoder ? all.encoder_block : all.block;
      const auto blocks = static_cast<double>(encoder ? chunk.encoders : chunk.others);
      own.budget *= blocks * own.block.saved /
                    (static_cast<double>(chunk.encoders) * all.encoder_block.saved +
                     static_cast<double>(chunk.others) * all.block.saved);
      plans.push_back(nn::plan_of(own, encoder ? chunk.encoders : chunk.others));
    }
    return nn::joined(std::move(plans), stretches);
  }

  /// A block of this entry, which has its parameters from then on.
  std::unique_ptr<Layer> make_block(const std::string& name, std::int64_t number, BlockKind kind, NamedLayer& entry) {
    auto block = assembly_.block(name, number, kind);
    const std::vector<nn::Param*> params = newly_used();
    for (nn::Param* param : params) {
      if (std::ranges::find(entry.params, param) == entry.params.end()) entry.params.push_back(param);
    }
    return options_.adapt_block ? options_.adapt_block(name, std::move(block), params) : std::move(block);
  }

  bool wants(const std::string& name) {
    names_.push_back(name);
    return !options_.only || std::ranges::find(*options_.only, name) != options_.only->end();
  }

  /// The parameters that layers have begun to use since it was last asked.
  std::vector<nn::Param*> newly_used() {
    std::vector<nn::Param*> used;
    std::size_t i = 0;
    uses_.resize(model_.params.size(), 0);
    for (nn::Param& param : model_.params) {
      if (param.uses != uses_[i]) used.push_back(&param);
      uses_[i++] = param.uses;
    }
    return used;
  }

  Model& model_;
  Assembly assembly_;
  const BuildOptions& options_;
  std::vector<int> uses_;           // of each parameter, when last looked at
  std::vector<std::string> names_;  // of all entries, wanted or not
};

/// Encoder and decoder as one chain: the decoder's tokens travel beside the encoder, its output beside the decoder.
void add_encoder(ChainBuilder& chain, const spec::ModelShape& shape) {
  chain.add("encoder.embedding",
            [&] { return std::make_unique<OnFirst>(chain.assembly().embedding(nn::Stream::kSource)); });
  chain.add_blocks(shape.num_encoder_layers, std::string(kEncoderBlocks), BlockKind::kEncoder);
  chain.add("encoder.end", [&] {
    std::unique_ptr<nn::UnaryLayer> norm;
    if (shape.family == spec::Family::kT5) norm = std::make_unique<nn::Norm>(chain.assembly().norm("encoder.norm"));
    return std::make_unique<Swap>(std::move(norm));
  });
}

/// Dense, activation and norm before BERT's masked-LM logits.
void add_masked_lm(ChainBuilder& chain, const spec::ModelShape& shape) {
  chain.add("head.dense",
            [&] { return chain.assembly().linear_layer("head.dense", shape.hidden_size, shape.hidden_size, true); });
  chain.add("head.activation", [&] { return std::make_unique<nn::Activate>(to_kernel(shape.activation)); });
  chain.add("head.norm", [&] { return std::make_unique<nn::Norm>(chain.assembly().norm("head.norm")); });
}

}  // namespace

at::Tensor Model::forward(nn::Tensors ids, nn::Context& context, nn::Tape* tape) {
  for (NamedLayer& entry : layers) {
    RECORD_USER_SCOPE("layer " + entry.name);  // for traces; nothing where nobody records
    const TimedSpan span(context.events, entry.name, "forward", context.rank);
    ids = entry.layer->forward(std::move(ids), context, tape);
  }
  return std::move(ids.at(0));
}

void Model::backward(nn::Context& context, nn::Tape& tape) {
  nn::Tensors gradients(1);
  for (auto entry = layers.rbegin(); entry != layers.rend(); ++entry) {
    RECORD_USER_SCOPE("layer " + entry->name + " backward");
    const TimedSpan span(context.events, entry->name, "backward", context.rank);
    gradients = entry->layer->backward(std::move(gradients), context, tape);
  }
}

at::Tensor Model::next_logits(at::Tensor ids, nn::Context& context) {
  nn::Tensors x{std::move(ids)};
  for (NamedLayer& entry : std::span(layers).first(layers.size() - 1)) {
    x = entry.layer->forward(std::move(x), context, nullptr);
  }
  const bool packed = context.kv_batch != nullptr;  // all sequences in one row
  if (!packed) {
    x[0] = x[0].narrow(1, x[0].size(1) - 1, 1).contiguous();
  } else {
    if (context.kv_batch->hidden != nullptr) *context.kv_batch->hidden = x[0].squeeze(0);
    if (context.kv_batch->last_rows.defined()) x[0] = x[0].index_select(1, context.kv_batch->last_rows);
  }
  return layers.back().layer->forward(std::move(x), context, nullptr)[0].squeeze(packed ? 0 : 1);
}

std::vector<std::string> expert_layer_names(const spec::ModelShape& shape) {
  std::vector<std::string> names;
  const auto add = [&](const char* prefix, std::int64_t layers, std::int64_t first) {
    for (std::int64_t i = 0; i < layers; ++i) {
      if (spec::has_experts(shape, first + i)) names.push_back(fmt::format("{}.{}.mlp", prefix, i));
    }
  };
  add("encoder.layers", shape.num_encoder_layers, 0);
  add("layers", shape.num_layers, 0);
  add("mtp", shape.mtp_depth, shape.num_layers);
  return names;
}

std::unique_ptr<Model> build(const spec::ModelShape& shape, const BuildOptions& options) {
  if (auto problems = spec::find_problems(shape); !problems.empty()) {
    throw config::ProblemsError("this model's shape", std::move(problems));
  }
  auto model = std::make_unique<Model>();
  model->shape = shape;
  ChainBuilder chain(*model, options);
  const bool encoder = shape.num_encoder_layers > 0;
  if (encoder) add_encoder(chain, shape);
  chain.add("embedding", [&]() -> std::unique_ptr<Layer> {
    auto embedding = chain.assembly().embedding(nn::Stream::kSequence);
    if (encoder) return std::make_unique<OnFirst>(std::move(embedding));
    return embedding;
  });
  chain.add_blocks(shape.num_layers, "layers", encoder ? BlockKind::kDecoderBesideEncoder : BlockKind::kPlain);
  if (encoder) chain.add("decoder.end", [] { return std::make_unique<First>(2); });
  if (shape.norm_first) chain.add("norm", [&] { return std::make_unique<nn::Norm>(chain.assembly().norm("norm")); });
  if (shape.mtp_depth > 0) chain.add("mtp", [&] { return chain.assembly().multi_token_prediction(options); });
  if (shape.family == spec::Family::kBert) add_masked_lm(chain, shape);
  chain.add("head", [&] { return chain.assembly().head(options.logits_chunk_bytes); });
  chain.finish();
  if (options.adapt) {
    for (NamedLayer& entry : model->layers) entry.layer = options.adapt(entry.name, std::move(entry.layer));
  }
  return model;
}

}  // namespace trireme::models
