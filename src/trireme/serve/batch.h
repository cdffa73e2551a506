// serve/batch.h -- prompts from a JSONL file, answers to another: offline generation through the engine.
//
// A line of the input is an object with "prompt" (a text, or a list of token ids) or "messages" (a chat), and
// perhaps "id", "max_tokens", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
// "repetition_penalty", "seed", "stop" and "ignore_eos"; any other field is an error. Line i draws as choice i of its
// seed, so what is generated does not depend on which lines are there, how many run at once, or where a batch was cut.
// A line of the output: {"index", "id", "text", "tokens", "finish_reason", "prompt_tokens"}, or {"index", "id",
// "error"}, in the order in which they end.
// Depends on: base, comm, commands.h, engine.h, api/, chat/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

#include "trireme/comm/group.h"
#include "trireme/serve/commands.h"

namespace trireme::serve {

/// Indices of the lines that an output has. A torn last line, of a process that was killed, is cut off; ConfigError for
/// a file that is no output of a batch.
std::set<std::int64_t> finished_lines(const std::filesystem::path& output);

BatchResult generate_batch(const BatchRequest& request, comm::Group& world);

}  // namespace trireme::serve
