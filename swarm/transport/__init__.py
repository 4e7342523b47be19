"""The one seam for every way of a message: Sender and Source, Parcel and Delivery."""
