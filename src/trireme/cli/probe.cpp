// trireme probe: what another implementation of a published model can be compared with.

#include <map>
#include <memory>

#include "trireme/base/print.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/runtime_commands.h"

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
  auto request = std::make_shared<serve::ProbeRequest>();
  command.add_option("directory", request->model, "Hugging Face directory: config.json and safetensors").required();
  command.add_option("--ids", request->ids, "JSON file: a list of equally long lists of token ids").required();
  command.add_option("--out", request->out, "safetensors file to write").required();
  add_choice<spec::DeviceKind>(command, "--device", request->device,
                               {{"cpu", spec::DeviceKind::kCpu}, {"cuda", spec::DeviceKind::kCuda}}, "to compute on");
  command.callback([request, &context] {
    context.run = [request, &context] {
      const serve::ProbeResult result = load_serve().probe(*request);
      fmt::print(context.out, "loss {:.6f} over {} tokens; {} gradient norms and the logits are in {}\n", result.loss,
                 result.tokens, result.tensors, request->out.string());
      return 0;
    };
  });
}

}  // namespace trireme::cli
