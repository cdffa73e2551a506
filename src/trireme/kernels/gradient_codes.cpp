#include "trireme/kernels/gradient_codes.h"

#include "trireme/kernels/cpu/pick.h"

namespace trireme::kernels {
namespace {

// bfloat16 instructions have no part in them.
constexpr Compiled<SignCodesTable> kCompiledSignCodes{kSignCodesPlain, kSignCodesV3, kSignCodesV4, kSignCodesV4};
constexpr Compiled<LevelCodesTable> kCompiledLevelCodes{kLevelCodesPlain, kLevelCodesV3, kLevelCodesV4, kLevelCodesV4};

}  // namespace

const SignCodesTable& sign_codes() { return kCompiledSignCodes.pick(); }
const LevelCodesTable& level_codes() { return kCompiledLevelCodes.pick(); }

}  // namespace trireme::kernels
