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
  command.add_option("--tp", options.tp, "ranks that split each matrix (tensor parallelism)").show_default().positive();
  command.add_option("--pp", options.layout.pp, "pipeline stages: ranks with consecutive layers")
      .show_default()
      .positive();
  command
      .add_option("--pp-microbatches", options.layout.micros,
                  "micro-batches of sequences in a step of stages; default: two a stage")
      .positive();
  if (!replicas) return;
  command.add_option("--dp", options.layout.dp, "replicas, which continue different prompts").show_default().positive();
  command.add_option("--ep", options.layout.ep, "of --dp, ranks that experts are sharded over (expert parallelism)")
      .show_default()
      .positive();
}

}  // namespace trireme::cli
