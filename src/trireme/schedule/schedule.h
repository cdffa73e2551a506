// schedule/schedule.h -- a pipeline schedule is a table: per rank, the instructions of one step, in order.
//
// Builders (builders/*.cpp, one file each) only make tables; passes.h adds what follows from them (updates, weight
// versions, transfers), check.h proves a table complete and free of deadlock, replay.h times it, draw.h draws it.
// Whoever runs a schedule reads the same table, so what was checked and timed is what runs.
// Depends on: base. No tensors, no devices, no communication library.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::schedule {

enum class Op : std::uint8_t {
  kForward,
  kBackward,            ///< whole: gradients of inputs and of weights
  kBackwardInput,       ///< only what the previous chunk waits for
  kBackwardWeight,      ///< the rest, at any later time
  kRecompute,           ///< the forward pass again, to have its activations for a backward
  kForwardDoubled,      ///< of `micro` and the one after it; all forwards of a table are doubled or none (Chimera)
  kForwardBackward,     ///< a forward and the whole backward of another micro, overlapped by the rank
  kBeginForward,        ///< a forward in parts (interleave.h): up to where its first mixture of experts sends rows
  kBeginBackward,       ///< a whole backward in parts, likewise
  kDispatch,            ///< of a pass in parts: post its mixture's rows to the ranks of their experts
  kExpert,              ///< likewise: when they are here, compute the experts; post what they give back
  kCombine,             ///< likewise: when that is back, go on to the next mixture, or to the end of the pass
  kSendActivation,      ///< post: the output of `chunk` goes to where the next chunk is
  kRecvActivation,      ///< post: the input of `chunk` comes from where the previous chunk is
  kSendGradient,        ///< post: the gradient of the input of `chunk` goes to where the previous chunk is
  kRecvGradient,        ///< post: the gradient of the output of `chunk` comes from where the next chunk is
  kWaitSendActivation,  ///< go on only when that posted transfer is over
  kWaitRecvActivation,  ///< likewise
  kWaitSendGradient,    ///< likewise
  kWaitRecvGradient,    ///< likewise
  kReduceGradients,     ///< post: sum the gradients of `chunk` over everyone who holds it
  kOptimizerStep,       ///< when the posted reductions are over: update all chunks of the rank
  kStashWeights,        ///< keep a copy of the present weights of `chunk` as version `micro`
  kLoadWeights,         ///< the next pass through `chunk` computes with version `micro`, stashed or predicted before
  kPredictWeights,      ///< predict version `micro` of `chunk` from the present weights; the next pass computes with it
  kDropWeights,         ///< forget the stashed version `micro` of `chunk`
};

/// Chunks are numbered along the model, over all ranks: chunk 0 takes the input, the last one gives the loss.
/// Version v of weights is what v optimizer steps have made of them. Where nothing else is said, a pass computes with
/// the present version. A prediction stays until the next one for passes of the same direction through that chunk.
struct Instruction {
  Op op = Op::kForward;
  std::int16_t chunk = -1;
  std::int16_t back_chunk = -1;  // of the backward half of kForwardBackward
  std::int32_t micro = -1;       // for the weight instructions: the version
  std::int32_t back_micro = -1;  // likewise
  bool operator==(const Instruction&) const = default;
};

Instruction make(Op op, int chunk, int micro);
Instruction make_pair(int chunk, int micro, int back_chunk, int back_micro);

/// The law by which passes meet versions of weights. Whoever runs a table needs it to know how to predict; check.h
/// holds a table against it.
enum class WeightChoice : std::uint8_t {
  kFlush,            ///< every pass of a step with the weights that the step began with
  kStash,            ///< backward with the version its forward met (PipeDream)
  kVerticalSync,     ///< every pass of a micro with the version that it met at chunk 0
  kDoubleBuffer,     ///< every pass of a step with the version before the step's (PipeDream-2BW)
  kPredictMomentum,  ///< both passes with a prediction of the same version from momentum (SpecTrain)
  kPredictAdam,      ///< the micros of a step share a prediction from Adam's moments, one for each direction (XPipe)
  kStale,            ///< every pass with whatever is there
  /// Both passes of a micro with the version that its wave and the clock distance say, and with this pipeline's own
  /// gradients beside it: of all micros that are at least a wave older (HetPipe; waves.h)
  kWaves,
};

/// With the names used in files.
std::span<const Named<WeightChoice>> enum_names(std::type_identity<WeightChoice>);

struct Schedule {
  std::string name;
  int micros = 0;        // over all steps that the table holds
  int update_every = 0;  // micros whose gradients make one optimizer step; 0: all of them
  /// Micros that a micro-batch of the run is cut into: 2 where backward takes it in halves (Chimera), whose forward
  /// then is doubled. `micros` and `update_every` count halves.
  int micro_parts = 1;
  WeightChoice weights = WeightChoice::kFlush;
  /// Waves that a virtual worker may be ahead of the slowest, of kWaves alone; a wave is the micros of one update.
  int clock_distance = 0;
  /// [route][chunk]: the rank that holds it. Bidirectional pipelines have two routes through the ranks, so two copies
  /// of each chunk; all others have one.
  std::vector<std::vector<int>> routes;
  std::vector<int> route_of;  // [micro]; empty: every micro takes route 0
  /// [chunk]: mixtures of experts whose rows travel between ranks, each a D, an E and a C of a pass in parts; empty:
  /// none, and no pass is in parts.
  std::vector<int> mixtures;
  std::vector<std::vector<Instruction>> ranks;  // [rank][position]

  int chunks() const { return routes.empty() ? 0 : static_cast<int>(routes.front().size()); }
  int last_chunk() const { return chunks() - 1; }
  /// The optimizer step, counted from 0, that the gradients of a micro go into.
  int step_of(int micro) const { return update_every == 0 ? 0 : micro / update_every; }
  int steps() const { return micros == 0 ? 0 : step_of(micros - 1) + 1; }
  int rank_of(int chunk, int micro) const {
    return routes[route_of.empty() ? 0 : static_cast<std::size_t>(route_of[static_cast<std::size_t>(micro)])]
                 [static_cast<std::size_t>(chunk)];
  }
  bool operator==(const Schedule&) const = default;
};

/// Which numbers an instruction carries.
enum class Operands : std::uint8_t { kNone, kChunk, kMicroAndChunk, kVersionAndChunk, kPair };

struct OpInfo {
  Op op;
  std::string_view mnemonic;  // in texts: "F"
  std::string_view words;     // in messages: "forward"
  Operands operands;
};

std::span<const OpInfo> op_table();
const OpInfo& info(Op op);

bool is_send(Op op);
bool is_recv(Op op);
bool is_wait(Op op);
bool is_transfer(Op op);  // any of the three
bool is_version(Op op);   // stash, load, predict or drop
bool is_pass(Op op);      // a whole pass, two of them, or any part of one
bool is_begin(Op op);     // of a pass in parts
bool is_part(Op op);      // what follows its begin: dispatch, expert or combine
/// The posted instruction that a wait is for.
Op waited_for(Op wait);
/// Whether the instruction does (also) this.
bool does_forward(const Instruction& instruction);
bool does_input_gradient(const Instruction& instruction);
bool does_weight_gradient(const Instruction& instruction);
/// Micros that the forward takes at once, from `micro` on; 0: the instruction does none.
int forward_count(const Instruction& instruction);
/// Chunk and micro of the backward that the instruction does.
int backward_chunk(const Instruction& instruction);
int backward_micro(const Instruction& instruction);
/// The rank at the other end of a transfer, or -1 where the model ends.
int peer_of(const Schedule& schedule, const Instruction& instruction);
bool has_transfers(const Schedule& schedule);

/// Whether the next pass through the chunk of a weight instruction is a forward.
bool next_pass_is_forward(std::span<const Instruction> list, std::size_t position);

/// How many micros each forward of the table takes.
int micros_of_forward(const Schedule& schedule);

/// Chunks that the rank holds, over all routes, ascending.
std::vector<int> chunks_of(const Schedule& schedule, int rank);
/// Ranks that hold the chunk, over all routes, ascending.
std::vector<int> holders_of(const Schedule& schedule, int chunk);

/// "F3.1": forward of micro 3 through chunk 1; ".1" is left out where the rank holds one chunk only.
std::string to_text(const Instruction& instruction, bool with_chunk);
/// One line a rank, "rank 0: F0 F1 B0 ...".
std::string ranks_text(const Schedule& schedule);
/// The same under lines with name, micros and placement: a file that parse() reads back.
std::string to_text(const Schedule& schedule);
/// Reads to_text()'s form; `#` starts a comment. Throws ConfigError naming rank and position.
Schedule parse(std::string_view text);

std::string to_json(const Schedule& schedule);
Schedule from_json(std::string_view text);
/// Either form, told apart by the first character.
Schedule read(std::string_view text);

}  // namespace trireme::schedule
