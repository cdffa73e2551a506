#include "trireme/plan/published.h"

#include <fmt/format.h>

#include "trireme/base/data_files.h"

namespace trireme::plan {
namespace {

constexpr Named<ModelFamily> kFamilies[] = {{"gpt", ModelFamily::kGpt}, {"llama", ModelFamily::kLlama}};
constexpr Named<Confidence> kConfidences[] = {{"high", Confidence::kHigh}, {"medium", Confidence::kMedium}};
constexpr Named<FlopsKind> kFlops[] = {{"model", FlopsKind::kModel}, {"hardware", FlopsKind::kHardware}};

/// Where a source does not print the batch: as many tokens as models of that size are trained with.
constexpr std::int64_t kUsualTokens = 1 << 20;

}  // namespace

std::span<const Named<ModelFamily>> enum_names(std::type_identity<ModelFamily>) { return kFamilies; }
std::span<const Named<Confidence>> enum_names(std::type_identity<Confidence>) { return kConfidences; }
std::span<const Named<FlopsKind>> enum_names(std::type_identity<FlopsKind>) { return kFlops; }

spec::ModelShape shape_of(const ModelSizes& sizes) {
  std::vector<config::Problem> problems;
  const auto need = [&problems](const char* key, const std::optional<std::int64_t>& value) {
    if (!value) problems.push_back({.key = key, .reason = "is needed to know the model", .hint = {}, .where = {}});
    return value.value_or(1);
  };
  spec::ModelShape shape =
      spec::family_shape(sizes.family == ModelFamily::kLlama ? spec::Family::kLlama : spec::Family::kGpt2);
  shape.num_layers = need("layers", sizes.num_layers);
  shape.hidden_size = need("hidden", sizes.hidden_size);
  shape.num_heads = need("heads", sizes.num_heads);
  shape.vocab_size = sizes.vocab_size.value_or(shape.vocab_size);
  shape.num_kv_heads = sizes.num_kv_heads.value_or(shape.num_heads);
  if (sizes.family == ModelFamily::kGpt) {
    shape.ffn_size = sizes.ffn_size.value_or(4 * shape.hidden_size);
    shape.dropout = shape.attention_dropout = 0.1;  // as all of the GPT runs that were published
  } else {
    shape.ffn_size = need("ffn", sizes.ffn_size);
  }
  if (problems.empty() && shape.num_heads > 0 && shape.hidden_size % shape.num_heads != 0)
    problems.push_back({.key = "heads",
                        .reason = fmt::format("{} does not divide hidden = {}", shape.num_heads, shape.hidden_size),
                        .hint = {},
                        .where = {}});
  if (problems.empty()) {
    shape.head_dim = shape.hidden_size / std::max<std::int64_t>(1, shape.num_heads);
    problems = spec::find_problems(shape, "model");
  }
  if (!problems.empty()) throw config::ProblemsError("the model", std::move(problems));
  return shape;
}

void describe(config::Section<PublishedRun>& section) {
  using Run = PublishedRun;
  section.meaning("a published training run");
  section.field("id", &Run::id, "name of the run in this repository").required();
  section.field("source", &Run::source, "paper or report that printed it").required();
  section.field("confidence", &Run::confidence, "high: the figures were printed");
  section.field("evidence", &Run::evidence, "which of them");
  section.field("cluster", &Run::cluster, "name in recipes/clusters").required();
  section.field("family", &Run::family, "model family");
  section.field("num_layers", &Run::num_layers, "transformer layers").at_least(1);
  section.field("hidden_size", &Run::hidden_size, "hidden size (d_model)").at_least(1);
  section.field("num_heads", &Run::num_heads, "attention heads").at_least(1);
  section.field("num_kv_heads", &Run::num_kv_heads, "key and value heads").at_least(1);
  section.field("ffn_size", &Run::ffn_size, "hidden size of the MLP").at_least(1);
  section.field("vocab_size", &Run::vocab_size, "vocabulary size").at_least(1);
  section.field("seq_len", &Run::seq_len, "sequence length in tokens").at_least(1);
  section.field("gpus", &Run::gpus, "GPUs").at_least(1);
  section.field("tp", &Run::tp, "tensor-parallel size").at_least(1);
  section.field("pp", &Run::pp, "pipeline stages").at_least(1);
  section.field("dp", &Run::dp, "data-parallel size").at_least(1);
  section.field("cp", &Run::cp, "context-parallel size").at_least(1);
  section.field("virtual_stages", &Run::virtual_stages, "virtual stages of each pipeline rank").at_least(1);
  section.field("micro_batch_size", &Run::micro_batch_size, "micro-batch size in sequences").at_least(1);
  section.field("global_batch_size", &Run::global_batch_size, "global batch size in sequences").at_least(1);
  section.field("recompute", &Run::recompute, "activation recomputation");
  section.field("sequence_parallel", &Run::sequence_parallel, "sequence parallelism over tp");
  section.field("zero", &Run::zero, "ZeRO stage").range(0, 3);
  section.field("precision", &Run::precision, "data type of the GEMMs");
  section.field("attention", &Run::attention, "fused (FlashAttention) or not");
  section.field("step_seconds", &Run::step_seconds, "measured seconds of a step").above(0);
  section.field("tflops", &Run::tflops, "measured TFLOP/s of a GPU").above(0);
  section.field("flops", &Run::flops, "what `tflops` counts: model FLOPs, or hardware FLOPs with recomputation");
  section.field("forward_ms", &Run::forward_ms, "measured forward time of one layer, in ms").above(0);
  section.field("backward_ms", &Run::backward_ms, "measured backward time of one layer, in ms").above(0);
  section.field("tensor_parallel_gib", &Run::tensor_parallel_gib, "activation memory with tp alone, in GiB").above(0);
  section
      .field("selective_gib", &Run::selective_gib,
             "activation memory with sequence parallelism and selective recomputation, in GiB")
      .above(0);
  section.field("states_gib", &Run::states_gib, "weights, gradients and optimizer state, in GiB").above(0);
}

void describe(config::Section<PublishedFile>& section) {
  section.meaning("what one source printed");
  section.tables("runs", &PublishedFile::runs);
  section.tables("layer_times", &PublishedFile::layer_times);
  section.tables("activations", &PublishedFile::activations);
  section.tables("out_of_memory", &PublishedFile::out_of_memory);
}

std::vector<PublishedSource> load_published() {
  std::vector<PublishedSource> sources;
  for (const std::string& name : data_names("published"))
    sources.push_back({name, config::load<PublishedFile>({.file = find_data_file("published", name).string()}).value});
  return sources;
}

Job job_of(const PublishedRun& run) {
  Job job;
  job.shape = shape_of({.family = run.family,
                        .num_layers = run.num_layers,
                        .hidden_size = run.hidden_size,
                        .num_heads = run.num_heads,
                        .num_kv_heads = run.num_kv_heads,
                        .ffn_size = run.ffn_size,
                        .vocab_size = run.vocab_size});
  job.seq_len = run.seq_len;
  job.batch = run.global_batch_size.value_or(std::max<std::int64_t>(run.gpus, kUsualTokens / run.seq_len));
  job.precision = precision_of(run.precision);
  job.attention = run.attention;
  job.software = Software::kMegatron;
  return job;
}

Choices choices_of(const PublishedRun& run) {
  return {.tp = run.tp,
          .pp = run.pp,
          .dp = run.dp,
          .cp = run.cp,
          .virtual_stages = run.virtual_stages,
          .micro_batch_size = run.micro_batch_size,
          .zero = run.zero,
          .zero_group = 0,
          .sequence_parallel = run.sequence_parallel,
          .recompute = run.recompute,
          .offload = spec::OffloadKind::kNone,
          .split = "count",
          .schedules = {"1f1b", "interleaved"}};
}

bool counts(const PublishedRun& run) {
  return run.confidence == Confidence::kHigh && run.num_layers && run.hidden_size && run.num_heads && run.tp &&
         run.pp && run.dp && run.global_batch_size && (run.step_seconds || run.tflops);
}

double measured_seconds(const PublishedRun& run) {
  if (run.step_seconds) return *run.step_seconds;
  const Job job = job_of(run);
  const double flops = run.flops == FlopsKind::kModel
                           ? model_flops(job)
                           : hardware_flops(job, {.recompute = run.recompute.value_or(spec::RecomputeKind::kNone)});
  return flops / (run.tflops.value_or(1) * 1e12 * run.gpus);
}

}  // namespace trireme::plan
