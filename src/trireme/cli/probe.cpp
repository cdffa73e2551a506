// trireme probe: what another implementation of a published model can be compared with.

#include <map>
#include <memory>

#include "trireme/base/print.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"

namespace trireme::cli {

void add_probe_command(Command& app, Context& context) {
  Command& command =
      app.add_subcommand("probe", "Write logits, loss and gradient norms of a published model on given tokens");
  command.footer(
      "One forward and one backward pass in fp32, written as a safetensors file:\n"
      "  logits          [sequences, tokens, vocabulary]\n"
      "  loss            mean cross-entropy of the next token (BERT: of the token itself)\n"
      "  grad_norm.NAME  norm of the loss's gradient for each tensor of the directory; a tied weight once\n"
      "\n"
      "Example:\n"
      "  echo '[[15496, 11, 995], [40, 716, 257]]' > ids.json\n"
      "  trireme probe models/gpt2 --ids ids.json --out probe.safetensors");
  struct Options {
    serve::ProbeRequest request;
    int tp = 1;
  };
  const auto options = std::make_shared<Options>();  // shared with the callback
  serve::ProbeRequest* const request = &options->request;
  command.add_option("directory", request->model, "Hugging Face directory: config.json and safetensors").required();
  command.add_option("--ids", request->ids, "JSON file: a list of equally long lists of token ids").required();
  command.add_option("--out", request->out, "safetensors file to write").required();
  add_choice<spec::DeviceKind>(command, "--device", request->device,
                               {{"cpu", spec::DeviceKind::kCpu}, {"cuda", spec::DeviceKind::kCuda}}, "to compute on");
  command.add_option("--tp", options->tp, "ranks that split each matrix (tensor parallelism)")
      .show_default()
      .positive();
  command.callback([options, &context] {
    context.run = [options, &context] {
      serve::ProbeRequest& asked = options->request;
      spec::Recipe recipe;
      recipe.comm.ranks = options->tp;
      asked.local_ranks = local_ranks(recipe);
      const serve::Commands& commands = load_serve();
      serve::ProbeResult result;
      start_ranks(recipe, [&](comm::Rank& rank) {
        const serve::ProbeResult mine = commands.probe(asked, rank);
        if (rank.rank() == 0) result = mine;
      });
      fmt::print(context.out, "loss {:.6f} over {} tokens; {} gradient norms and the logits are in {}\n", result.loss,
                 result.tokens, result.tensors, asked.out.string());
      return 0;
    };
  });
}

}  // namespace trireme::cli
