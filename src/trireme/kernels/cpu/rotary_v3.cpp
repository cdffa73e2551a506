#define TRIREME_ROTARY_TABLE kRotaryV3
#include "trireme/kernels/cpu/rotary_body.h"
