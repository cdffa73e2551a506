#define TRIREME_ROTARY_TABLE kRotaryV4Bf16
#include "trireme/kernels/cpu/rotary_body.h"
