#include "trireme/serve/rank_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/checkpoint/weight_memory.h"
#include "trireme/device/cuda.h"
#include "trireme/models/quantised_tensors.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/serve/draft_model.h"
#include "trireme/serve/multi_token_drafter.h"
#include "trireme/serve/quantise_model.h"

namespace trireme::serve {
namespace {

std::optional<kernels::QuantiseWeight> how_of(WeightBits bits) {
  using kernels::WeightFormat;
  switch (bits) {
    case WeightBits::kInt8:
      return kernels::QuantiseWeight{.format = WeightFormat::kInt8};
    case WeightBits::kInt4:
      return kernels::QuantiseWeight{.format = WeightFormat::kInt4};
    case WeightBits::kFp8:
      return kernels::QuantiseWeight{.format = WeightFormat::kE4m3};
    case WeightBits::kSame:
      break;
  }
  return std::nullopt;
}

nn::Precision precision_of(const ModelRequest& request) {
  return request.precision == GeneratePrecision::kBf16 ? nn::Precision::kBf16 : nn::Precision::kFp32;
}

spec::LayoutConfig layout_of(const ModelRequest& request, int ranks) {
  const RankLayout& wanted = request.layout;
  const int others = wanted.pp * wanted.dp;
  if (others < 1 || ranks % others != 0) {
    throw ConfigError(fmt::format("{} ranks are no multiple of pp {} x dp {}", ranks, wanted.pp, wanted.dp),
                      fmt::format("start {} ranks", std::max(1, others)));
  }
  spec::LayoutConfig layout;
  layout.pp = wanted.pp;
  layout.dp = wanted.dp;
  layout.ep = wanted.ep;
  layout.tp = ranks / others;
  return layout;
}

/// What does not go together in inference, beside what layouts know.
void check_together(const ModelRequest& request, const spec::ModelShape& shape, int ranks, bool is_quantised) {
  const RankLayout& layout = request.layout;
  if (layout.ep > 1 && layout.pp > 1)
    throw ConfigError("experts over replicas (ep) and pipeline stages (pp) do not go together in generation",
                      "leave one of them out");
  if (layout.ep > 1 && !shape.experts.used())
    throw ConfigError(fmt::format("ep {} shards experts, and this model has none", layout.ep), "leave --ep out");
  const bool gpu = request.device == spec::DeviceKind::kCuda;
  const bool chooses_experts = request.experts != ExpertsOverTp::kDefault;
  if (chooses_experts && !shape.experts.used())
    throw ConfigError("--experts-over-tp says what ranks have of experts, and this model has none",
                      "leave --experts-over-tp out");
  if (gpu && chooses_experts && request.experts != ExpertsOverTp::kCopies)
    throw ConfigError("on GPUs tensor-parallel ranks have copies of experts so far: kernels route and count there",
                      "leave --experts-over-tp out");
  if (gpu && request.kv_cache == KvCacheDtype::kFp8)
    throw ConfigError("an FP8 KV cache is read on the CPU so far: attention on a GPU takes 16-bit keys",
                      "leave --kv-cache-dtype or --device out");
  if (gpu && request.lm_head != WeightBits::kSame)
    throw ConfigError("the output head's matrix (lm_head) is quantised on the CPU only", "leave --lm-head-weights out");
  if (gpu && (layout.pp > 1 || layout.dp > 1))
    throw ConfigError("on GPUs generation is tensor parallel so far: --pp and --dp are for the CPU", "use --tp");
  if (request.weight_arena_bytes == 0) return;
  if (is_quantised)
    throw ConfigError("quantised weights are not streamed",
                      "leave --weights or --weight-arena out, or name a plain "
                      "folder");
  if (layout.pp > 1 || ranks > 1)
    throw ConfigError("weights are streamed by one rank", "leave --tp, --pp, --dp or --weight-arena out");
}

/// What tensor-parallel ranks have of experts, and a line about it.
void split_experts(const ModelRequest& request, const spec::ModelShape& shape, int tp, checkpoint::OpenOptions& options,
                   std::string& about) {
  if (tp == 1 || !shape.experts.used()) return;
  const bool gpu = request.device == spec::DeviceKind::kCuda;
  ExpertsOverTp how = request.experts;
  if (how == ExpertsOverTp::kDefault) how = gpu ? ExpertsOverTp::kCopies : ExpertsOverTp::kSlices;
  options.build.slice_experts = how == ExpertsOverTp::kSlices;
  options.shape = shape;
  options.shape->experts.slice_over_tp = how == ExpertsOverTp::kTokens;
  about = how == ExpertsOverTp::kSlices   ? fmt::format("experts: each of {} ranks has a slice of every expert", tp)
          : how == ExpertsOverTp::kTokens ? fmt::format("experts: {} ranks have copies, and share out the tokens", tp)
                                          : fmt::format("experts: {} ranks have copies, and compute all tokens", tp);
}

/// Blocks as evenly as they go; what is before the first goes with it, what is behind the last with that.
std::vector<std::string> stage_entries(const models::Model& whole, int stage, int stages) {
  std::vector<std::string> names;
  std::vector<std::size_t> blocks;
  for (const models::NamedLayer& entry : whole.layers) {
    if (entry.name.starts_with("layers.")) blocks.push_back(names.size());
    names.push_back(entry.name);
  }
  const auto count = static_cast<int>(blocks.size());
  if (count < stages) {
    throw ConfigError(fmt::format("{} pipeline stages of a model with {} layers", stages, count),
                      fmt::format("use --pp {} or less", count));
  }
  const auto begin_of = [&](int of) {
    if (of == 0) return std::size_t{0};
    if (of == stages) return names.size();
    return blocks[static_cast<std::size_t>(of * (count / stages) + std::min(of, count % stages))];
  };
  return {names.begin() + static_cast<std::ptrdiff_t>(begin_of(stage)),
          names.begin() + static_cast<std::ptrdiff_t>(begin_of(stage + 1))};
}

}  // namespace

std::int64_t available_host_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return std::int64_t{1} << 30;
}

void check_continues(const spec::ModelShape& shape) {
  if (shape.causal && shape.num_encoder_layers == 0) return;
  throw ConfigError("this model does not read from left to right, so it cannot continue a text",
                    "use a GPT-2, Llama, Mistral or Qwen directory");
}

std::unique_ptr<RankModel> open_rank_model(const ModelRequest& request, comm::Group& world) {
  const spec::ModelShape shape = checkpoint::stored_shape(request.model);
  check_continues(shape);
  const spec::LayoutConfig layout = layout_of(request, world.size());
  spec::LayoutTask task;
  task.shape = shape;
  task.ranks = world.size();
  task.batch_rows = world.size();
  parallel::check_layout(layout, {}, task);
  const bool stored_in_bits = checkpoint::is_quantised(request.model);
  const auto how = how_of(request.weights);
  if (stored_in_bits && how) {
    throw ConfigError(fmt::format("{} is quantised already", request.model.string()), "leave --weights out");
  }
  const bool is_quantised = stored_in_bits || how.has_value();
  check_together(request, shape, world.size(), is_quantised || request.lm_head != WeightBits::kSame);

  auto out = std::make_unique<RankModel>();
  out->groups =
      parallel::form(layout, shape, world, /*length=*/1, parallel::init_device_exchange(request.device, world));
  out->shares_experts = layout.ep > 1;
  checkpoint::OpenOptions options;
  options.device = out->groups->device;
  options.masters = false;
  options.precision = precision_of(request);
  options.build.parallel = &out->groups->parallel;
  split_experts(request, shape, layout.tp, options, out->about);
  if (layout.pp > 1) {
    options.build.only = stage_entries(*models::build(shape), out->groups->stage, layout.pp);
    out->pipeline = {.group = out->groups->pipeline,
                     .micros = request.layout.micros > 0 ? request.layout.micros : 2 * std::int64_t{layout.pp},
                     .decode_micros = request.layout.micros > 0 ? request.layout.micros : layout.pp};
  }
  std::optional<StreamPlan> plan;
  if (request.weight_arena_bytes > 0) {
    const auto meta = models::build(shape, options.build);
    plan = plan_stream(
        stream_units(*meta, static_cast<std::int64_t>(c10::elementSize(nn::compute_type(options.precision)))),
        request.weight_arena_bytes);
    std::map<std::string, bool> resident;  // by parameter: of any entry that stays
    for (const models::NamedLayer& entry : meta->layers) {
      const bool stays = std::ranges::find(plan->resident, entry.name) != plan->resident.end();
      for (const nn::Param* param : entry.params) resident[param->name] |= stays;
    }
    options.left_out = [resident](const nn::Param& param) { return !resident.at(param.name); };
  } else if (is_quantised) {
    options.left_out = models::is_quantisable;
  }
  out->opened = checkpoint::open_model(request.model, options);
  if (is_quantised) {
    out->quantised_weights = load_quantised(out->model(), *out->opened.weights, options.device, options.precision, how);
  }
  if (plan) {
    out->stream = std::make_unique<WeightStream>(
        out->model(), *plan, out->opened.weights,
        WeightStream::Options{.type = nn::compute_type(options.precision),
                              .device = options.device,
                              .pinned_bytes = options.device.is_cuda() ? available_host_bytes() / 2 : 0});
    if (!out->about.empty()) out->about += "\n";
    out->about += fmt::format("weights: {} of {} layers stay in memory ({} bytes), {} are streamed ({} bytes a step)",
                              plan->resident.size(), plan->resident.size() + plan->streamed.size(),
                              plan->resident_bytes, plan->streamed.size(), plan->streamed_bytes);
  }
  if (const auto of_head = how_of(request.lm_head)) quantise_head(out->model(), *of_head, out->quantised_weights);
  std::vector<at::Tensor*> codes;
  for (auto& [param, weight] : out->quantised_weights) codes.push_back(&weight.values);
  checkpoint::move_to_huge_pages(codes);
  if (request.kv_cache == KvCacheDtype::kFp8) out->kv_cache = nn::KvCacheType::kE4m3;
  return out;
}

std::int64_t RankModel::most_kv_tokens() const {
  const nn::Param& any = *model().params.begin();
  std::int64_t bytes = available_host_bytes() / 4;
  if (any.value.is_cuda()) {
    std::int64_t free = 0, total = 0;
    device::cuda_runtime().mem_get_info(any.value.device().index(), &free, &total);
    bytes = free / 10 * 8;
  }
  return bytes / std::max<std::int64_t>(1, nn::kv_bytes_per_token(model().shape, any.value.element_size(), kv_cache));
}

void RankModel::set_up(EngineOptions& options) const {
  options.quantised = quantised();
  options.kv_cache = kv_cache;
  options.weights = stream.get();
  options.pipeline = pipeline.group != nullptr ? &pipeline : nullptr;
  options.lockstep = shares_experts ? groups->parallel.experts : nullptr;
  // Neither collectives nor copies of layers that are streamed are captured.
  if (groups->groups->world().size() > 1 || stream != nullptr) options.cuda_graphs = false;
}

SpeculationRule rule_of(const SpeculationRequest& request) {
  return request.rejection ? SpeculationRule::kRejection : SpeculationRule::kCoupled;
}

RankDrafter make_drafter(const SpeculationRequest& request, const ModelRequest& of, const RankModel& model,
                         InferenceEngine& engine) {
  const SpeculationRule rule = rule_of(request);
  RankDrafter out;
  switch (request.kind) {
    case DraftKind::kNone:
      break;
    case DraftKind::kNgram:
      out.drafter = ngram_drafter({.most = request.most});
      break;
    case DraftKind::kModel: {
      check_continues(checkpoint::stored_shape(request.model));
      checkpoint::OpenOptions options;
      options.device = model.groups->device;
      options.masters = false;
      options.precision = precision_of(of);
      out.model = std::make_unique<checkpoint::OpenedModel>(checkpoint::open_model(request.model, options));
      const EngineOptions& runs = engine.options();
      out.drafter = draft_model(*out.model->model, model.model().shape,
                                {.depth = request.most,
                                 .kv_tokens = runs.kv_tokens,
                                 .chunk = runs.prefill_chunk,
                                 .max_sequences = runs.max_sequences,
                                 .rule = rule});
      break;
    }
    case DraftKind::kMultiToken:
      if (model.pipeline.group != nullptr || model.shares_experts || model.stream != nullptr) {
        throw ConfigError("modules of multi-token prediction draft on ranks that hold the whole model",
                          "leave --pp, --ep or --weight-arena out, or speculate with n-grams or a draft model");
      }
      out.drafter = multi_token_drafter(model.model(), engine.kv_cache(),
                                        {.depth = request.most, .rule = rule, .invariant = engine.options().invariant});
      break;
  }
  return out;
}

}  // namespace trireme::serve
