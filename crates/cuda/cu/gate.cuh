// Activations of a gate.
#include "number.cuh"

FN float logistic(float x) { return reciprocal_fast(1.f + exp2_fast(-1.4426950408889634f * x)); }
FN float silu(float x) { return x * logistic(x); }
// 1 + tanh(y) is 2 logistic(2 y).
FN float gelu(float x) { return x * logistic(2.f * 0.7978845608028654f * (x + 0.044715f * x * x * x)); }
// 0: SiLU, 1: GELU by tanh.
FN float activation(int act, float x) { return act == 0 ? silu(x) : gelu(x); }
