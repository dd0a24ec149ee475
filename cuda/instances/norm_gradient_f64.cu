#include "norm_gradient.inl"

template int rowwise::launch_norm_gradient<double>(const rw_norm_params&, void*, bool);
