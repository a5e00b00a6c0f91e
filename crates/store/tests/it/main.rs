//! The store on SQLite, from outside.

#[cfg(test)]
mod blocks;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod erase;
#[cfg(test)]
mod full;
#[cfg(test)]
mod home;
#[cfg(test)]
mod loss;
#[cfg(test)]
mod migrating;
#[cfg(test)]
mod notes;
#[cfg(test)]
mod offline;
#[cfg(test)]
mod opening;
#[cfg(test)]
mod place;
#[cfg(test)]
mod prune;
#[cfg(test)]
mod rebuilding;
#[cfg(test)]
mod receipts;
#[cfg(test)]
mod recent;
#[cfg(test)]
mod repair;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod suite;
