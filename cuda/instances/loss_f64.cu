#include "loss.inl"

template int rowwise::launch_loss<double>(const rw_loss_params&, void*, bool);
