#include "norm_gradient.inl"

template int rowwise::launch_norm_gradient<rowwise::bf16>(const rw_norm_params&, void*, bool);
