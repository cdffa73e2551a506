#define TRIREME_ROTARY_TABLE kRotaryPlain
#include "trireme/kernels/cpu/rotary_body.h"
