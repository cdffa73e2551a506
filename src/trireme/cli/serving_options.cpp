#include "trireme/cli/serving_options.h"

#include <map>

#include "trireme/base/error.h"
#include "trireme/cli/program.h"

namespace trireme::cli {

serve::SpeculationRequest ServingOptions::speculation() const {
  serve::SpeculationRequest request{.most = speculate, .rejection = rejection};
  if (speculate == 0) {
    if (draft != "ngram" || rejection)
      throw ConfigError(
          "--speculative-model and --rejection-sampling say how to speculate, but no tokens are to be guessed",
          "give --num-speculative-tokens 4, or leave them out");
    return request;
  }
  if (draft == "ngram") {
    request.kind = serve::DraftKind::kNgram;
  } else if (draft == "mtp") {
    request.kind = serve::DraftKind::kMultiToken;
  } else {
    request.kind = serve::DraftKind::kModel;
    request.model = draft;
  }
  return request;
}

void add_compute_options(Command& command, serve::GeneratePrecision& precision, spec::DeviceKind& device,
                         serve::WeightBits& weights, ServingOptions& options) {
  add_choice<serve::GeneratePrecision>(
      command, "--precision", precision,
      {{"fp32", serve::GeneratePrecision::kFp32}, {"bf16", serve::GeneratePrecision::kBf16}}, "to compute with");
  add_choice<spec::DeviceKind>(command, "--device", device,
                               {{"cpu", spec::DeviceKind::kCpu}, {"cuda", spec::DeviceKind::kCuda}}, "to compute on");
  add_choice<serve::WeightBits>(
      command, "--weights", weights,
      {{"same", serve::WeightBits::kSame},
       {"int8", serve::WeightBits::kInt8},
       {"int4", serve::WeightBits::kInt4},
       {"fp8", serve::WeightBits::kFp8}},
      "what matrices of attention and MLPs are kept in: as --precision says, int8 or FP8 with a "
      "scale a row, int4 with one for 128 values");
  command.add_flag("--no-cuda-graphs", options.no_cuda_graphs, "GPU: launch the kernels of decode steps one by one");
}

void add_serving_options(Command& command, ServingOptions& options, bool replicas) {
  command
      .add_option("--num-speculative-tokens", options.speculate,
                  "tokens that are guessed and verified in each step; the same tokens, sooner")
      .show_default();
  command
      .add_option(
          "--speculative-model", options.draft,
          "who guesses: \"ngram\" (what followed before in the text), \"mtp\" (the model's modules of multi-token "
          "prediction), or the folder of a smaller model")
      .show_default();
  command.add_flag("--rejection-sampling", options.rejection,
                   "accept guesses by the rejection rule: other tokens, from the same distribution");
  command
      .add_option("--weight-arena", options.weight_arena_mb,
                  "MB that weights may take; layers beyond it stay in MODEL and are streamed while others compute")
      .positive();
  add_choice<serve::WeightBits>(
      command, "--lm-head-weights", options.lm_head,
      {{"same", serve::WeightBits::kSame}, {"int8", serve::WeightBits::kInt8}, {"int4", serve::WeightBits::kInt4}},
      "CPU: what the matrix that logits are computed with is kept in; an embedding that is tied to it stays as it is");
  add_choice<serve::KvCacheDtype>(
      command, "--kv-cache-dtype", options.kv_cache,
      {{"auto", serve::KvCacheDtype::kAuto}, {"fp8", serve::KvCacheDtype::kFp8}},
      "what keys and values are kept in: as --precision says, or on the CPU FP8 (e4m3) with "
      "a scale for each head of each token");
  command.add_option("--tp", options.tp, "ranks that split each matrix (tensor parallelism)").show_default().positive();
  command.add_option("--pp", options.layout.pp, "pipeline stages: ranks with consecutive layers")
      .show_default()
      .positive();
  command
      .add_option("--pp-microbatches", options.layout.micros,
                  "micro-batches of sequences in a step of stages; default: two a stage, in steps of decode alone one")
      .positive();
  add_choice<serve::ExpertsOverTp>(
      command, "--experts-over-tp", options.experts,
      {{"default", serve::ExpertsOverTp::kDefault},
       {"slices", serve::ExpertsOverTp::kSlices},
       {"tokens", serve::ExpertsOverTp::kTokens},
       {"copies", serve::ExpertsOverTp::kCopies}},
      "what ranks of --tp have of experts: a slice of each one's matrices, or copies, of which each rank computes an "
      "equal part of the tokens, or all; default: slices, on a GPU copies");
  if (!replicas) return;
  command.add_option("--dp", options.layout.dp, "replicas, which continue different prompts").show_default().positive();
  command.add_option("--ep", options.layout.ep, "of --dp, ranks that experts are sharded over (expert parallelism)")
      .show_default()
      .positive();
}

}  // namespace trireme::cli
