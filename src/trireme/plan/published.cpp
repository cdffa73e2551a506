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
  shape.layers = need("layers", sizes.layers);
  shape.width = need("hidden", sizes.hidden);
  shape.heads = need("heads", sizes.heads);
  shape.vocabulary = sizes.vocab.value_or(shape.vocabulary);
  shape.kv_heads = sizes.kv_heads.value_or(shape.heads);
  if (sizes.family == ModelFamily::kGpt) {
    shape.inner = sizes.ffn.value_or(4 * shape.width);
    shape.dropout = shape.attention_dropout = 0.1;  // as all of the GPT runs that were published
  } else {
    shape.inner = need("ffn", sizes.ffn);
  }
  if (problems.empty() && shape.heads > 0 && shape.width % shape.heads != 0)
    problems.push_back({.key = "heads",
                        .reason = fmt::format("{} does not divide hidden = {}", shape.heads, shape.width),
                        .hint = {},
                        .where = {}});
  if (problems.empty()) {
    shape.head_size = shape.width / std::max<std::int64_t>(1, shape.heads);
    problems = spec::find_problems(shape, "model");
  }
  if (!problems.empty()) throw config::ProblemsError("the model", std::move(problems));
  return shape;
}

void describe(config::Section<PublishedRun>& section) {
  using Run = PublishedRun;
  section.meaning("a run that was published");
  section.field("id", &Run::id, "its name here").required();
  section.field("source", &Run::source, "where it was printed").required();
  section.field("confidence", &Run::confidence, "high: its figures were printed");
  section.field("evidence", &Run::evidence, "which of them");
  section.field("cluster", &Run::cluster, "what it ran on").required();
  section.field("family", &Run::family, "what kind of model");
  section.field("layers", &Run::layers, "layers").at_least(1);
  section.field("hidden", &Run::hidden, "width").at_least(1);
  section.field("heads", &Run::heads, "attention heads").at_least(1);
  section.field("kv_heads", &Run::kv_heads, "heads of keys and values").at_least(1);
  section.field("ffn", &Run::ffn, "width of the MLP").at_least(1);
  section.field("vocab", &Run::vocab, "vocabulary").at_least(1);
  section.field("seq", &Run::seq, "tokens of a sequence").at_least(1);
  section.field("gpus", &Run::gpus, "devices").at_least(1);
  section.field("tp", &Run::tp, "tensor parallelism").at_least(1);
  section.field("pp", &Run::pp, "stages").at_least(1);
  section.field("dp", &Run::dp, "replicas").at_least(1);
  section.field("cp", &Run::cp, "context parallelism").at_least(1);
  section.field("virtual_stages", &Run::virtual_stages, "chunks of a stage").at_least(1);
  section.field("microbatch", &Run::microbatch, "sequences").at_least(1);
  section.field("global_batch", &Run::global_batch, "sequences").at_least(1);
  section.field("recompute", &Run::recompute, "what is recomputed");
  section.field("sequence_parallel", &Run::sequence_parallel, "whether norms are split over tp");
  section.field("zero", &Run::zero, "ZeRO stage").range(0, 3);
  section.field("precision", &Run::precision, "numbers of matrix products");
  section.field("attention", &Run::attention, "fused or not");
  section.field("step_seconds", &Run::step_seconds, "measured").above(0);
  section.field("tflops", &Run::tflops, "measured, for each device").above(0);
  section.field("flops", &Run::flops, "what `tflops` counts");
  section.field("forward_ms", &Run::forward_ms, "measured, of one layer").above(0);
  section.field("backward_ms", &Run::backward_ms, "measured, of one layer").above(0);
  section.field("tensor_parallel_gib", &Run::tensor_parallel_gib, "activations with tp alone").above(0);
  section.field("selective_gib", &Run::selective_gib, "activations with sequence parallelism, selective").above(0);
  section.field("states_gib", &Run::states_gib, "weights, gradients and optimizer").above(0);
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
                        .layers = run.layers,
                        .hidden = run.hidden,
                        .heads = run.heads,
                        .kv_heads = run.kv_heads,
                        .ffn = run.ffn,
                        .vocab = run.vocab});
  job.length = run.seq;
  job.batch = run.global_batch.value_or(std::max<std::int64_t>(run.gpus, kUsualTokens / run.seq));
  job.arithmetic = run.precision;
  job.attention = run.attention;
  return job;
}

Choices choices_of(const PublishedRun& run) {
  return {.tp = run.tp,
          .pp = run.pp,
          .dp = run.dp,
          .cp = run.cp,
          .virtual_stages = run.virtual_stages,
          .microbatch = run.microbatch,
          .zero = run.zero,
          .sequence_parallel = run.sequence_parallel,
          .recompute = run.recompute,
          .schedule = {}};
}

bool counts(const PublishedRun& run) {
  return run.confidence == Confidence::kHigh && run.layers && run.hidden && run.heads && run.tp && run.pp && run.dp &&
         run.global_batch && (run.step_seconds || run.tflops);
}

double measured_seconds(const PublishedRun& run) {
  if (run.step_seconds) return *run.step_seconds;
  const Job job = job_of(run);
  const double flops =
      run.flops == FlopsKind::kModel ? model_flops(job) : hardware_flops(job, run.recompute.value_or(Recompute::kNone));
  return flops / (run.tflops.value_or(1) * 1e12 * run.gpus);
}

}  // namespace trireme::plan
